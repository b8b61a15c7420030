/* The call of a tapped module (probes/taps.py): run the module, and let its output wait if it may.
 *
 * This runs for every module of every monitored step, when its own code and objects have long left
 * the caches. A Python function does the same in twice the time.
 *
 * The interpreter hands out the addresses of its functions, all of its stable interface: no headers
 * are needed. The caller holds the interpreter's lock.
 */
#include "kernel.h"

#include <stddef.h>

typedef void object;

/* `Interpreter` of tap.py. "New" gives a reference that has to be dropped. */
typedef struct {
    object *(*call)(object *callable, object *args, object *kwargs); /* new */
    object *(*ask)(object *callable);                                /* new */
    object *(*tell)(object *callable, ...);                          /* new */
    object *(*attribute)(object *holder, object *name);              /* new */
    object *(*type)(object *of);                                     /* new */
    object *(*find)(object *dict, object *key);
    object *(*item)(object *tuple, ptrdiff_t at);
    int (*append)(object *list, object *item);
    ptrdiff_t (*length)(object *list);
    void (*drop)(object *);
    void (*forget)(void); /* clears an exception */
} interpreter;

/* What a tap holds, in this order: `Parts` of tap.py. */
enum { CALL, MODULE, SEEN, LIGHT, SITES, TENSORS, VERSIONS };

static interpreter py;
static object *plain_tensor, *yes, *none, *no_graph, *training, *version, *graph, *transform;
static ptrdiff_t most;

/* All objects are kept alive by tap.py. */
EXPORT void torchvitals_tap_setup(const interpreter *functions, object *const *objects,
                                  int64_t number) {
    py = *functions;
    plain_tensor = objects[0], yes = objects[1], none = objects[2], no_graph = objects[3];
    training = objects[4], version = objects[5], graph = objects[6], transform = objects[7];
    most = (ptrdiff_t)number;
}

/* Whether an answer is this very object; takes the reference. */
static int is(object *answer, object *wanted) {
    if (!answer) {
        py.forget();
        return 0;
    }
    py.drop(answer);
    return answer == wanted;
}

/* Whether the output was added to those that wait: the questions of `_tap` in probes/taps.py. */
static int waits(object *parts, object *module, object *output) {
    object *site = py.find(py.item(parts, LIGHT), module);
    object *tensors = py.item(parts, TENSORS);
    if (!site || !is(py.type(output), plain_tensor) || !is(py.attribute(module, training), yes) ||
        !is(py.ask(graph), no_graph) || !is(py.ask(transform), none) || py.length(tensors) >= most)
        return 0;
    object *count = py.attribute(output, version);
    if (!count) {
        py.forget();
        return 0;
    }
    if (py.append(py.item(parts, SITES), site) || py.append(tensors, output) ||
        py.append(py.item(parts, VERSIONS), count))
        py.forget(); /* no memory: lists of different lengths are noticed when they are taken */
    py.drop(count);
    return 1;
}

/* A method of the interpreter with arguments and keywords; `parts` is what it is bound to. */
EXPORT object *torchvitals_tap(object *parts, object *args, object *kwargs) {
    object *output = py.call(py.item(parts, CALL), args, kwargs);
    if (!output) return NULL;
    object *module = py.item(parts, MODULE);
    if (waits(parts, module, output)) return output;
    object *told = py.tell(py.item(parts, SEEN), module, output, NULL);
    if (!told) {
        py.drop(output);
        return NULL;
    }
    py.drop(told);
    return output;
}
