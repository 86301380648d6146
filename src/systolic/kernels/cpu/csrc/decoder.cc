// XLA custom calls for the small pieces of a decoder layer: RMS norm, rotary embedding, gated SiLU.
//
// Every row is computed by the same instructions in the same order whatever the number of rows, so its
// bits depend on that row alone. Results never share memory with arguments (see ForChunks).

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "parallel.h"

namespace systolic {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kTaskElements = 32768;  // below this a thread hand-off costs more than it saves
constexpr int kSums = 4;                  // independent partial sums hide the latency of the addition

// row(m) for each of `rows` rows of `width` elements, on the pool only where there is work for it.
template <typename Row>
void ForRows(ffi::ThreadPool& pool, int64_t rows, int64_t width, Row&& row) {
  int64_t tasks = std::min(rows, rows * width / kTaskElements);
  if (tasks > 1) tasks = std::min<int64_t>(tasks, 4 * std::max<int64_t>(1, pool.num_threads()));
  if (tasks <= 1) {
    FlushSubnormals flush;
    for (int64_t m = 0; m < rows; ++m) row(m);
    return;
  }
  ParallelFor(pool, tasks, [&](int64_t task) {
    for (int64_t m = rows * task / tasks; m < rows * (task + 1) / tasks; ++m) row(m);
  });
}

// body(i, count) for vectors that cover [0, width). The last one is moved back to be whole where it
// can be, so some elements are computed twice: body must not change its own inputs.
template <typename Body>
SYSTOLIC_INLINE void ForChunks(int64_t width, Body&& body) {
  constexpr std::integral_constant<int64_t, kLanes> whole{};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) body(i, whole);
  if (i == width) return;
  if (width >= kLanes) {
    body(width - kLanes, whole);
  } else {
    body(0, width);
  }
}

// normed = v / sqrt(mean(v^2) + epsilon) * weight with v = x, or v = x + residual, stored in total.
template <bool kAdd>
void NormRow(const float* x, const float* residual, const float* weight, int64_t width, float epsilon,
             float* total, float* normed) {
  auto value = [&](int64_t i, auto count) __attribute__((always_inline)) {
    Vec v = LoadPart(x + i, count);
    if constexpr (kAdd) {
      v += LoadPart(residual + i, count);
      StorePart(total + i, v, count);
    }
    return v;
  };
  constexpr std::integral_constant<int64_t, kLanes> whole{};
  Vec sum[kSums] = {};
  int64_t i = 0;
  for (; i + kSums * kLanes <= width; i += kSums * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < kSums; ++j) {
      const Vec v = value(i + j * kLanes, whole);
      sum[j] += v * v;
    }
  }
  for (; i + kLanes <= width; i += kLanes) {
    const Vec v = value(i, whole);
    sum[0] += v * v;
  }
  if (i < width) {
    const Vec v = value(i, width - i);
    sum[1] += v * v;
  }
  const float squares = HorizontalSum((sum[0] + sum[1]) + (sum[2] + sum[3]));
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(width) + epsilon);
  const float* from = kAdd ? total : x;
  if (weight == nullptr) {
    ForChunks(width, [&](int64_t at, auto count) __attribute__((always_inline)) {
      StorePart(normed + at, LoadPart(from + at, count) * scale, count);
    });
  } else {
    ForChunks(width, [&](int64_t at, auto count) __attribute__((always_inline)) {
      StorePart(normed + at, LoadPart(from + at, count) * scale * LoadPart(weight + at, count), count);
    });
  }
}

ffi::Error RmsNorm(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::F32> weight,
                   ffi::ResultBuffer<ffi::F32> normed, float epsilon) {
  const int64_t rows = x.dimensions()[0], width = x.dimensions()[1];
  const float* from = x.typed_data();
  const float* scale = weight.element_count() > 0 ? weight.typed_data() : nullptr;
  float* to = normed->typed_data();
  ForRows(pool, rows, width, [=](int64_t m) {
    NormRow<false>(from + m * width, nullptr, scale, width, epsilon, nullptr, to + m * width);
  });
  return ffi::Error::Success();
}

ffi::Error AddRmsNorm(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::F32> residual,
                      ffi::Buffer<ffi::F32> weight, ffi::ResultBuffer<ffi::F32> normed,
                      ffi::ResultBuffer<ffi::F32> total, float epsilon) {
  const int64_t rows = x.dimensions()[0], width = x.dimensions()[1];
  const float *from = x.typed_data(), *add = residual.typed_data();
  const float* scale = weight.element_count() > 0 ? weight.typed_data() : nullptr;
  float *to = normed->typed_data(), *sum = total->typed_data();
  ForRows(pool, rows, width, [=](int64_t m) {
    const int64_t at = m * width;
    NormRow<true>(from + at, add + at, scale, width, epsilon, sum + at, to + at);
  });
  return ffi::Error::Success();
}

struct Heads {
  int64_t count, size, rotary_dim;
};

// Pairs element i with i + rotary_dim / 2. The cosines of a vector serve all heads.
void RotateHalves(const float* x, const float* cosines, Heads heads, float* y) {
  const int64_t half = heads.rotary_dim / 2;
  ForChunks(half, [&](int64_t i, auto count) __attribute__((always_inline)) {
    const Vec cos = LoadPart(cosines + i, count), sin = LoadPart(cosines + half + i, count);
    for (int64_t h = 0; h < heads.count; ++h) {
      const int64_t at = h * heads.size + i;
      const Vec one = LoadPart(x + at, count), two = LoadPart(x + at + half, count);
      StorePart(y + at, one * cos - two * sin, count);
      StorePart(y + at + half, two * cos + one * sin, count);
    }
  });
}

// Pairs element 2 i with 2 i + 1.
void RotateNeighbours(const float* x, const float* cosines, Heads heads, float* y) {
  const IVec lane = Iota(), pair = lane >> 1;
  const Vec sign = (lane & 1) != 0 ? Splat(1.0f) : Splat(-1.0f);
  ForChunks(heads.rotary_dim, [&](int64_t i, auto count) __attribute__((always_inline)) {
    const float* from = cosines + i / 2;
    const Vec cos = __builtin_shuffle(LoadPart(from, count / 2), pair);
    const Vec sin = __builtin_shuffle(LoadPart(from + heads.rotary_dim / 2, count / 2), pair) * sign;
    for (int64_t h = 0; h < heads.count; ++h) {
      const int64_t at = h * heads.size + i;
      const Vec v = LoadPart(x + at, count);
      StorePart(y + at, v * cos + Exchange<1>(v) * sin, count);
    }
  });
}

// As jax.numpy indexes: -1 is the last row, and what is out of range goes to the nearest row.
int64_t Position(const ffi::AnyBuffer& positions, int64_t token, int64_t rows) {
  int64_t position = positions.element_type() == ffi::S64
                         ? static_cast<const int64_t*>(positions.untyped_data())[token]
                         : static_cast<const int32_t*>(positions.untyped_data())[token];
  if (position < 0) position += rows;
  return std::clamp<int64_t>(position, 0, rows - 1);
}

ffi::Error Rotary(ffi::ThreadPool pool, ffi::AnyBuffer positions, ffi::Buffer<ffi::F32> x,
                  ffi::Buffer<ffi::F32> cos_sin_cache, ffi::ResultBuffer<ffi::F32> y, int64_t head_size,
                  int64_t rotary_dim, bool neox) {
  const auto type = positions.element_type();
  if (type != ffi::S32 && type != ffi::S64) {
    return ffi::Error::InvalidArgument("positions must be int32 or int64");
  }
  const int64_t tokens = x.dimensions()[0], width = x.dimensions()[1], rows = cos_sin_cache.dimensions()[0];
  const Heads heads{width / head_size, head_size, rotary_dim};
  const float *from = x.typed_data(), *cache = cos_sin_cache.typed_data();
  float* to = y->typed_data();
  ForRows(pool, tokens, width, [&, from, cache, to](int64_t t) {
    const float* cosines = cache + Position(positions, t, rows) * rotary_dim;
    const float* in = from + t * width;
    float* out = to + t * width;
    neox ? RotateHalves(in, cosines, heads, out) : RotateNeighbours(in, cosines, heads, out);
    if (rotary_dim == head_size) return;
    for (int64_t h = 0; h < heads.count; ++h) {
      const int64_t rest = h * head_size + rotary_dim;
      std::memcpy(out + rest, in + rest, (head_size - rotary_dim) * sizeof(float));
    }
  });
  return ffi::Error::Success();
}

// x / (1 + e^-x). The exponential is of -|x|, which cannot overflow; its error is at most 2 units in
// the last place, and results below x = -87 are -0. NaN for NaN and for -inf, as 0 * inf is.
SYSTOLIC_INLINE Vec Silu(Vec x) {
  const Vec e = ExpNonPositive(x < 0.0f ? x : -x);
  return x * ((x < 0.0f ? e : Splat(1.0f)) / (1.0f + e));
}

ffi::Error SiluAndMul(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  const int64_t rows = x.dimensions()[0], width = y->dimensions()[1];
  const float* from = x.typed_data();
  float* to = y->typed_data();
  ForRows(pool, rows, width, [=](int64_t m) {
    const float* gate = from + 2 * m * width;
    float* out = to + m * width;
    ForChunks(width, [&](int64_t i, auto count) __attribute__((always_inline)) {
      StorePart(out + i, Silu(LoadPart(gate + i, count)) * LoadPart(gate + width + i, count), count);
    });
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(SystolicRmsNorm, RmsNorm,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()  // x [M, d]
                                  .Arg<ffi::Buffer<ffi::F32>>()  // weight [d] or empty
                                  .Ret<ffi::Buffer<ffi::F32>>()  // normed [M, d]
                                  .Attr<float>("epsilon"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(SystolicAddRmsNorm, AddRmsNorm,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()  // x [M, d]
                                  .Arg<ffi::Buffer<ffi::F32>>()  // residual [M, d]
                                  .Arg<ffi::Buffer<ffi::F32>>()  // weight [d] or empty
                                  .Ret<ffi::Buffer<ffi::F32>>()  // normed [M, d]
                                  .Ret<ffi::Buffer<ffi::F32>>()  // total [M, d]
                                  .Attr<float>("epsilon"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(SystolicRotary, Rotary,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()         // positions [T]
                                  .Arg<ffi::Buffer<ffi::F32>>()  // x [T, heads * head_size]
                                  .Arg<ffi::Buffer<ffi::F32>>()  // cosines, then sines [P, rotary_dim]
                                  .Ret<ffi::Buffer<ffi::F32>>()  // rotated x
                                  .Attr<int64_t>("head_size")
                                  .Attr<int64_t>("rotary_dim")
                                  .Attr<bool>("neox"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(SystolicSiluAndMul, SiluAndMul,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()    // gate and up [M, 2 d]
                                  .Ret<ffi::Buffer<ffi::F32>>());  // silu(gate) * up [M, d]

}  // namespace systolic
