/* The loops of each instruction set: the best one that the machine has is chosen at load time. */
#include "kernel.h"

#include <string.h>

/* The best one last. */
static const struct {
    const char *name;
    const loops *loops;
} sets[] = {
    {"baseline", &loops_baseline},
#ifdef WITH_AVX
    {"avx2", &loops_avx2},
    {"avx512", &loops_avx512},
#endif
};

static int chosen_set;
static const loops *chosen = &loops_baseline;

const loops *chosen_loops(void) { return chosen; }

/* How many of the sets this machine has: each one has the ones before. */
static int sets_here(void) {
#ifdef WITH_AVX
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl")) return 2;
    return 3;
#else
    return 1;
#endif
}

static void choose(int set) {
    chosen_set = set;
    chosen = sets[set].loops;
}

#if defined(__GNUC__)
__attribute__((constructor))
#endif
static void choose_best(void) { choose(sets_here() - 1); }

EXPORT const char *torchvitals_simd(void) { return sets[chosen_set].name; }

/* For tests and `vitals doctor`: use the named loops; 0 if this machine or build lacks them. */
EXPORT int torchvitals_use(const char *name) {
    for (int set = 0; set < sets_here(); set++)
        if (!strcmp(name, sets[set].name)) {
            choose(set);
            return 1;
        }
    return 0;
}
