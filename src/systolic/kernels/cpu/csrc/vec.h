// Fixed-width float vectors and the few vector functions that the kernels share.
//
// The width follows the compiler's target: 16 lanes with AVX-512, 8 with AVX, 4 otherwise. Everything
// is written with the compiler's vector extension, so one source serves every instruction set.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace systolic {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t IVec __attribute__((vector_size(kLanes * sizeof(float))));
typedef float Quad __attribute__((vector_size(4 * sizeof(float))));

#define SYSTOLIC_INLINE inline __attribute__((always_inline))

SYSTOLIC_INLINE Vec Load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

SYSTOLIC_INLINE void Store(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }

// The first `count` lanes, the others zero; a plain load where the compiler knows that count is kLanes.
SYSTOLIC_INLINE Vec LoadPart(const float* p, int64_t count) {
  Vec v = Vec{};
  std::memcpy(&v, p, count * sizeof(float));
  return v;
}

SYSTOLIC_INLINE void StorePart(float* p, Vec v, int64_t count) { std::memcpy(p, &v, count * sizeof(float)); }

// x - 0 is x for every x, -0 included, so this is one broadcast; 0 + x would be an addition.
SYSTOLIC_INLINE Vec Splat(float x) { return x - Vec{}; }

SYSTOLIC_INLINE IVec Iota() {
  IVec v;
  for (int i = 0; i < kLanes; ++i) v[i] = i;
  return v;
}

SYSTOLIC_INLINE Vec Max(Vec a, Vec b) { return a > b ? a : b; }

// Lane k of the result is lane k ^ distance of v.
template <int distance>
SYSTOLIC_INLINE Vec Exchange(Vec v) {
  IVec index = Iota() ^ distance;
  return __builtin_shuffle(v, index);
}

SYSTOLIC_INLINE float HorizontalMax(Vec v) {
  if constexpr (kLanes >= 16) v = Max(v, Exchange<8>(v));
  if constexpr (kLanes >= 8) v = Max(v, Exchange<4>(v));
  v = Max(v, Exchange<2>(v));
  v = Max(v, Exchange<1>(v));
  return v[0];
}

SYSTOLIC_INLINE float HorizontalSum(Vec v) {
  if constexpr (kLanes >= 16) v = v + Exchange<8>(v);
  if constexpr (kLanes >= 8) v = v + Exchange<4>(v);
  v = v + Exchange<2>(v);
  v = v + Exchange<1>(v);
  return v[0];
}

// Sums of four vectors at once: {sum(a), sum(b), sum(c), sum(d)}.
SYSTOLIC_INLINE Quad HorizontalSum4(Vec a, Vec b, Vec c, Vec d) {
  IVec lane = Iota();
  // Inside each group of four lanes: low = {a0, b0, a1, b1}, high = {a2, b2, a3, b3}.
  IVec low = (lane & ~3) + ((lane & 3) >> 1) + (lane & 1) * kLanes;
  IVec high = low + 2;
  Vec ab = __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
  Vec cd = __builtin_shuffle(c, d, low) + __builtin_shuffle(c, d, high);
  IVec first = (lane & ~3) + (lane & 1) + ((lane & 2) >> 1) * kLanes;
  IVec second = first + 2;
  Vec sums = __builtin_shuffle(ab, cd, first) + __builtin_shuffle(ab, cd, second);
  if constexpr (kLanes >= 16) sums = sums + Exchange<8>(sums);
  if constexpr (kLanes >= 8) sums = sums + Exchange<4>(sums);
  Quad out;
  std::memcpy(&out, &sums, sizeof(out));
  return out;
}

// e^x for x <= 0, within 2 units in the last place; 0 below -87, NaN for NaN.
SYSTOLIC_INLINE Vec ExpNonPositive(Vec x) {
  const float kLowest = -87.0f;
  Vec clamped = x < kLowest ? Splat(kLowest) : x;
  // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low mantissa bits.
  const float kRound = 12582912.0f;
  Vec shifted = clamped * 1.44269504f + kRound;
  Vec n = shifted - kRound;
  // ln 2 in two parts, the first short enough for n * part to be exact.
  Vec r = clamped - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Vec p = Splat(0.00138145f);
  p = p * r + 0.00836878f;
  p = p * r + 0.04166839f;
  p = p * r + 0.1666652f;
  p = p * r + 0.49999993f;
  p = p * (r * r) + r + 1.0f;
  IVec bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits << 23) + 0x3f800000;
  Vec power;
  std::memcpy(&power, &bits, sizeof(power));
  return x < kLowest ? Splat(0.0f) : p * power;
}

SYSTOLIC_INLINE float ExpNonPositive(float x) { return ExpNonPositive(Splat(x))[0]; }

// tanh(x), relative error below 2e-7.
SYSTOLIC_INLINE Vec Tanh(Vec x) {
  Vec magnitude = x < 0.0f ? -x : x;
  Vec z = x * x;
  Vec p = Splat(-0.00571703f);
  p = p * z + 0.02065058f;
  p = p * z - 0.05374349f;
  p = p * z + 0.13331491f;
  p = p * z - 0.33333284f;
  Vec small = p * z * x + x;
  Vec e = ExpNonPositive(magnitude * -2.0f);
  Vec large = (1.0f - e) / (1.0f + e);
  large = x < 0.0f ? -large : large;
  return magnitude < 0.625f ? small : large;
}

// Transposes kLanes x kLanes floats: to[i * to_stride + j] = from[j * from_stride + i].
SYSTOLIC_INLINE void TransposeSquare(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  Vec row[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) row[i] = Load(from + i * from_stride);
  const IVec lane = Iota();
#pragma GCC unroll 4
  for (int half = kLanes / 2; half >= 1; half /= 2) {
    // Swap the off-diagonal blocks of size `half` between rows i and i + half.
    IVec upper = (lane & half) != 0 ? lane - half + kLanes : lane;
    IVec lower = (lane & half) != 0 ? lane + kLanes : lane + half;
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i & half) continue;
      Vec a = row[i], b = row[i + half];
      row[i] = __builtin_shuffle(a, b, upper);
      row[i + half] = __builtin_shuffle(a, b, lower);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) Store(to + i * to_stride, row[i]);
}

// Flushes subnormal numbers to zero while alive, on any thread, so that a result does not depend on
// which thread computed it.
class FlushSubnormals {
 public:
#if defined(__SSE__)
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#endif
};

}  // namespace systolic
