// XLA custom call: y = x W^T + b for a few rows of x, at the speed of reading W.

#include <algorithm>

#include "parallel.h"

namespace systolic {
namespace {

namespace ffi = xla::ffi;

constexpr int kWeightRows = 4;
constexpr int kInputRows = kLanes >= 16 ? 6 : 3;  // 4 x 6 accumulators fit 32 registers, 4 x 3 fit 16
constexpr int64_t kPanelRows = 8;  // rows of W that stay in the level-1 cache while x passes by

// Rows of W that a block fetches ahead while it computes.
struct Ahead {
  const float* rows = nullptr;
  int count = 0;
};

// y[m, n..n+3] for kRows rows of x. Each output has one accumulator of kLanes partial sums that runs
// over k in rising order, so its bits do not depend on the other rows.
template <int kRows>
inline __attribute__((noinline)) void Dot(const float* x, const float* const* w, int64_t depth,
                                          const float* bias, int columns, float* y, int64_t y_stride,
                                          Ahead ahead) {
  Vec sum[kRows][kWeightRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kWeightRows; ++n) sum[m][n] = Vec{};
  }
  const float *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3];
  int64_t k = 0;
  for (; k + kLanes <= depth; k += kLanes) {
    const Vec a0 = Load(w0 + k), a1 = Load(w1 + k), a2 = Load(w2 + k), a3 = Load(w3 + k);
    for (int i = 0; i < ahead.count; ++i) __builtin_prefetch(ahead.rows + i * depth + k, 0, 3);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const Vec b = Load(x + m * depth + k);
      sum[m][0] += a0 * b;
      sum[m][1] += a1 * b;
      sum[m][2] += a2 * b;
      sum[m][3] += a3 * b;
    }
  }
  if (const int64_t rest = depth - k; rest > 0) {
    const Vec a0 = LoadPart(w0 + k, rest), a1 = LoadPart(w1 + k, rest);
    const Vec a2 = LoadPart(w2 + k, rest), a3 = LoadPart(w3 + k, rest);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const Vec b = LoadPart(x + m * depth + k, rest);
      sum[m][0] += a0 * b;
      sum[m][1] += a1 * b;
      sum[m][2] += a2 * b;
      sum[m][3] += a3 * b;
    }
  }
  Quad add = Quad{};
  if (bias != nullptr) std::memcpy(&add, bias, columns * sizeof(float));
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    Quad result = HorizontalSum4(sum[m][0], sum[m][1], sum[m][2], sum[m][3]) + add;
    std::memcpy(y + m * y_stride, &result, columns * sizeof(float));
  }
}

using DotFunction = void (*)(const float*, const float* const*, int64_t, const float*, int, float*, int64_t,
                             Ahead);
constexpr DotFunction kDot[] = {Dot<1>, Dot<2>, Dot<3>, Dot<4>, Dot<5>, Dot<6>};

// Rows [first, end) of W, all rows of x.
void LinearTask(const float* weights, const float* input, const float* add, float* output, int64_t rows,
                int64_t width, int64_t depth, int64_t first, int64_t end) {
  const int64_t groups = (rows + kInputRows - 1) / kInputRows;
  for (int64_t panel = first; panel < end; panel += kPanelRows) {
    const int64_t panel_end = std::min(end, panel + kPanelRows);
    for (int64_t g = 0; g < groups; ++g) {
      // Groups of nearly equal size: 8 rows are 4 + 4, not 6 + 2.
      const int64_t m = rows * g / groups, count = rows * (g + 1) / groups - m;
      for (int64_t n = panel; n < panel_end; n += kWeightRows) {
        const int columns = static_cast<int>(std::min<int64_t>(kWeightRows, end - n));
        const float* w[kWeightRows];
        for (int i = 0; i < kWeightRows; ++i) w[i] = weights + std::min(n + i, end - 1) * depth;
        // The groups share out the fetching of the rows one panel ahead.
        Ahead ahead;
        const int64_t begin = kWeightRows * g / groups;
        if (n + kPanelRows + kWeightRows <= end) {
          ahead.rows = weights + (n + kPanelRows + begin) * depth;
          ahead.count = static_cast<int>(kWeightRows * (g + 1) / groups - begin);
        }
        kDot[count - 1](input + m * depth, w, depth, add ? add + n : nullptr, columns,
                        output + m * width + n, width, ahead);
      }
    }
  }
}

// Rows of W of one task: some tasks a thread for balance, but not so few rows that a task is nothing.
int64_t TaskRows(int64_t width, int64_t threads) {
  const int64_t share = (width + 4 * threads - 1) / (4 * threads);
  return std::clamp<int64_t>((share + kPanelRows - 1) / kPanelRows * kPanelRows, 32, 256);
}

ffi::Error SmallLinear(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::F32> w,
                       ffi::Buffer<ffi::F32> bias, ffi::ResultBuffer<ffi::F32> y) {
  const int64_t rows = x.dimensions()[0], depth = x.dimensions()[1], width = w.dimensions()[0];
  const float* add = bias.element_count() > 0 ? bias.typed_data() : nullptr;
  const int64_t task_rows = TaskRows(width, std::max<int64_t>(1, pool.num_threads()));
  ParallelFor(pool, (width + task_rows - 1) / task_rows, [&](int64_t task) {
    LinearTask(w.typed_data(), x.typed_data(), add, y->typed_data(), rows, width, depth, task * task_rows,
               std::min(width, (task + 1) * task_rows));
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(SystolicSmallLinear, SmallLinear,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()    // x
                                  .Arg<ffi::Buffer<ffi::F32>>()    // weights
                                  .Arg<ffi::Buffer<ffi::F32>>()    // bias or empty
                                  .Ret<ffi::Buffer<ffi::F32>>());  // y

}  // namespace systolic
