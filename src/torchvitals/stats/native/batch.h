/* What a call measures, and what becomes of a chunk of it. */
#ifndef TORCHVITALS_BATCH_H
#define TORCHVITALS_BATCH_H

#include "kernel.h"

/* Elements of a chunk: long enough that handing it out costs nothing, short enough to balance. */
enum { CHUNK = 64 * BLOCK };

enum { LINE_BYTES = 64 }; /* of a cache */

typedef void (*parallel_fn)(void (*work)(void *), void *data, unsigned threads, unsigned flags);

/* How often each unit of a layer is active, |x| > floor, and the sum of |x|, in a sample of the
 * rows: the tensor is outer x units x inner, and of its outer x inner rows one in `step` is looked
 * at. */
typedef struct {
    int64_t units, inner, step;
    uint64_t counts; /* address of `units` uint32, added to */
    uint64_t totals; /* 0, or address of `units` float, added to */
    double floor;
} activity;

typedef struct {
    int64_t num;          /* tensors */
    const uint64_t *data; /* addresses of their values */
    const int64_t *count;
    const uint8_t *dtype;
    const uint64_t *old;    /* NULL, or earlier values: the delta is data - old */
    const uint64_t *grad;   /* NULL, or gradients (0: none) for the dot product with the delta */
    const float *ends;      /* NULL, or (low, high) of each tensor: how many lie outside */
    double *sums;           /* num x FIELDS */
    double *delta_sums;     /* num x FIELDS, with old */
    double *dots;           /* num x 3, with grad: delta . grad, delta^2, grad^2 */
    double *outside;        /* num, with ends */
    double *grad_sums;      /* NULL, or num x FIELDS: the gradients' own sums in the same pass */
    const activity *active; /* NULL, or what to count a unit in each tensor (units 0: nothing) */
    uint32_t *bins;         /* NULL, or num x NUM_BINS, added to */
    uint32_t *delta_bins;   /* NULL, or num x NUM_BINS, added to */
    uint32_t *grad_bins;    /* NULL, or num x NUM_BINS, added to */
    parallel_fn parallel;   /* NULL: run on the calling thread */
    int32_t threads;
    int32_t stride;         /* histogram: one group in `stride`; 1 takes all */
    int32_t roll;           /* old becomes data in the same pass */
    int32_t thin;           /* no minima, maxima and zeros, and nothing but sums */
    int32_t part;           /* 0, or: of large tensors only one group in so many is read, */
    int32_t phase;          /* from this one on; no histograms are counted then */
} batch;

/* The sums of a chunk, or of a tensor. */
typedef struct {
    double sums[FIELDS], delta[FIELDS], grad[FIELDS], dots[3], outside;
} slot;

/* What a thread carries along: tallies of the tensor it is in, and room for widened values. */
typedef struct {
    int64_t tensor;
    tally fresh, delta, grad;
    float wide[BLOCK], wide_old[BLOCK], wide_grad[BLOCK], diff[BLOCK], room[2 * BLOCK];
    double diff64[BLOCK];
} desk;

/* No sums yet. */
void reset(double *sums);
/* Whether only a part of this tensor is read. */
int is_part(const batch *b, int64_t k);
/* The chunk of tensor `k` from element `begin` on. */
void do_chunk(const batch *b, const loops *loop, int64_t k, int64_t begin, desk *d, slot *s);
/* Count how often the units of tensor `k` are active. */
void count_active(const batch *b, int64_t k, const loops *loop, float *room);

#endif
