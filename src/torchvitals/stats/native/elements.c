/* Elements of any dtype as float32. */
#include "kernel.h"

#include <string.h>

int width_of(int dtype) {
    static const int width[] = {[F32] = 4, [F64] = 8, [F16] = 2, [BF16] = 2};
    return width[dtype];
}

/* A block as float32: the tensor itself, or its values widened into `room`. */
const float *as_float(const loops *loop, uint64_t base, int dtype, int64_t at, int n, float *room) {
    if (dtype == F32) return (const float *)(uintptr_t)base + at;
    const uint16_t *x = (const uint16_t *)(uintptr_t)base + at;
    if (dtype == BF16) {
        loop->widen_bfloat(x, n, room);
        return room;
    }
    loop->widen_half(x, n, room);
    for (int i = 0; i < n; i++) {
        /* 65536 and above are Inf and NaN in disguise. */
        if (room[i] >= 65536.0f || room[i] <= -65536.0f) {
            uint32_t bits = ((uint32_t)(x[i] & 0x8000) << 16) | 0x7f800000u |
                            ((uint32_t)(x[i] & 0x3ff) << 13);
            memcpy(room + i, &bits, 4);
        }
    }
    return room;
}
