/* Where the tensors of a Python list lie, asked of torch through DLPack's exchange interface: one
 * call for the list instead of half a dozen questions a tensor.
 *
 * torch hands out the address of a function that describes a tensor object in a plain struct, and
 * the interpreter the addresses of its own: no headers of either are needed. The caller holds the
 * interpreter's lock.
 */
#include "kernel.h"

#include <stddef.h>

/* DLTensor of DLPack 1. */
typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    const int64_t *shape, *strides;
    uint64_t byte_offset;
} described;

enum { CPU = 1, FLOAT = 2, BFLOAT = 4 };

typedef struct {
    int (*describe)(void *tensor, described *out); /* not 0: it can't, and an exception is set */
    void *(*item)(void *list, ptrdiff_t at);
    void (*forget)(void); /* clears the exception */
    void *(*type)(void *object); /* gives a reference, that has to be dropped */
    void (*drop)(void *object);
    const void *plain[2]; /* the types that describe themselves as torch does */
} asking;

/* A subclass may say other things of itself than torch would of it. */
static int is_plain(const asking *ask, void *tensor) {
    void *type = ask->type(tensor);
    if (type) ask->drop(type);
    return type && (type == ask->plain[0] || type == ask->plain[1]);
}

static int dtype_of(const described *t) {
    if (t->lanes != 1) return -1;
    if (t->code == BFLOAT && t->bits == 16) return BF16;
    if (t->code != FLOAT) return -1;
    return t->bits == 32 ? F32 : t->bits == 64 ? F64 : t->bits == 16 ? F16 : -1;
}

/* Elements of a dense tensor, -1 of any other. */
static int64_t dense(const described *t) {
    int64_t count = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        if (t->strides && t->shape[d] > 1 && t->strides[d] != count) {
            for (int k = 0; k < t->ndim; k++)
                if (t->shape[k] == 0) return 0;
            return -1;
        }
        count *= t->shape[d];
    }
    return count;
}

/* One number for a shape: equal sizes of another shape have other units. */
static uint64_t mark_of(const described *t) {
    uint64_t mark = (uint64_t)t->ndim;
    for (int d = 0; d < t->ndim; d++) {
        mark = (mark ^ (uint64_t)t->shape[d]) * 0x9e3779b97f4a7c15u;
        mark ^= mark >> 32;
    }
    return mark;
}

/* Fill in addresses, and sizes, dtypes and shapes too unless they are `known`: then they must be
 * those. 1 when the kernel can read all of them as they are, 0 at the first that it can't. */
EXPORT int torchvitals_describe(const asking *ask, void *list, int64_t num, uint64_t *data,
                                int64_t *count, uint8_t *dtype, uint64_t *shape, int known) {
    for (int64_t k = 0; k < num; k++) {
        described t;
        void *tensor = ask->item(list, (ptrdiff_t)k);
        if (!tensor || !is_plain(ask, tensor) || ask->describe(tensor, &t)) {
            ask->forget();
            return 0;
        }
        const int code = dtype_of(&t);
        const int64_t size = t.device_type == CPU && code >= 0 ? dense(&t) : -1;
        if (size < 0 || (size && !t.data)) return 0;
        const uint64_t mark = mark_of(&t);
        if (known && (size != count[k] || code != dtype[k] || mark != shape[k])) return 0;
        count[k] = size;
        dtype[k] = (uint8_t)code;
        shape[k] = mark;
        data[k] = (uint64_t)(uintptr_t)t.data + t.byte_offset;
    }
    return 1;
}
