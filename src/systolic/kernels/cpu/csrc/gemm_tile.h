// Register-blocked product of a few rows with a panel of vectors.
#pragma once

#include "vec.h"

namespace systolic {

// Rows and vectors of one register block: 6 x 4 accumulators fit 32 registers, 6 x 2 fit 16.
constexpr int kRowBlock = 6;
constexpr int kVecBlock = kLanes >= 16 ? 4 : 2;

// c[r, :] = c[r, :] * decay[r] + sum over k of a[r, k] * b[k, :], for kVecs vectors of columns.
//
// The sum runs over k in rising order with one accumulator for each element, so an element's bits
// do not depend on kRows or kVecs. With `decay` null, c is taken as zero and only written.
template <int kRows, int kVecs>
SYSTOLIC_INLINE void MultiplyBlock(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                                   int64_t depth, const float* decay, float* c, int64_t c_stride) {
  Vec sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      sum[r][v] = decay != nullptr ? Load(c + r * c_stride + v * kLanes) * decay[r] : Vec{};
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vec column[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) column[v] = Load(b + k * b_stride + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      Vec factor = Splat(a[r * a_stride + k]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sum[r][v] += factor * column[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) Store(c + r * c_stride + v * kLanes, sum[r][v]);
  }
}

template <int kRows>
inline __attribute__((noinline)) void MultiplyRows(const float* a, int64_t a_stride, const float* b,
                                                   int64_t b_stride, int64_t depth, const float* decay,
                                                   float* c, int64_t c_stride, int64_t vecs) {
  int64_t v = 0;
  for (; v + kVecBlock <= vecs; v += kVecBlock) {
    MultiplyBlock<kRows, kVecBlock>(a, a_stride, b + v * kLanes, b_stride, depth, decay, c + v * kLanes,
                                    c_stride);
  }
  for (; v < vecs; ++v) {
    MultiplyBlock<kRows, 1>(a, a_stride, b + v * kLanes, b_stride, depth, decay, c + v * kLanes, c_stride);
  }
}

// The same for 1 to kRowBlock rows and any number of vectors.
inline void Multiply(int rows, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                     int64_t depth, const float* decay, float* c, int64_t c_stride, int64_t vecs) {
  switch (rows) {
    case 1: return MultiplyRows<1>(a, a_stride, b, b_stride, depth, decay, c, c_stride, vecs);
    case 2: return MultiplyRows<2>(a, a_stride, b, b_stride, depth, decay, c, c_stride, vecs);
    case 3: return MultiplyRows<3>(a, a_stride, b, b_stride, depth, decay, c, c_stride, vecs);
    case 4: return MultiplyRows<4>(a, a_stride, b, b_stride, depth, decay, c, c_stride, vecs);
    case 5: return MultiplyRows<5>(a, a_stride, b, b_stride, depth, decay, c, c_stride, vecs);
    default: return MultiplyRows<6>(a, a_stride, b, b_stride, depth, decay, c, c_stride, vecs);
  }
}

}  // namespace systolic
