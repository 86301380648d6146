// XLA custom call: y = x W^T + b for a few rows of x, at the speed of reading W.

#include <algorithm>

#include "parallel.h"

namespace systolic {
namespace {

namespace ffi = xla::ffi;

constexpr int kWeightRows = 4;
// A single row of x has registers for more rows of W: the more loads of W in flight, the faster it is read.
constexpr int kLoneRowWeights = kLanes >= 16 ? 4 : 8;
constexpr int kInputRows = kLanes >= 16 ? 6 : 3;  // 4 x 6 accumulators fit 32 registers, 4 x 3 fit 16
constexpr int64_t kPanelRows = 8;  // rows of W that stay in the level-1 cache while x passes by
// Rows of W that a block fetches ahead while it computes.
struct Ahead {
  const float* rows = nullptr;
  int count = 0;
};

// y[m, 0..columns-1] for kRows rows of x and the first `columns` of kWeights rows of W; kWhole says that all of
// them are there. Each output has one accumulator of kLanes partial sums that runs over k in rising order, so
// its bits do not depend on the other rows.
template <int kRows, int kWeights, bool kWhole>
inline __attribute__((noinline)) void Dot(const float* x, const float* w, int64_t depth, const float* bias,
                                          int columns, float* y, int64_t y_stride, Ahead ahead) {
  Vec sum[kRows][kWeights];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < kWeights; ++n) sum[m][n] = Vec{};
  }
  // While several groups of rows of x pass by, W has to be fetched ahead. For a single row the loads themselves keep
  // the memory busy, and with vectors of 8 lanes the instructions for fetching would be in their way.
  constexpr bool kFetches = kRows > 1 || kLanes >= 16;
  // A pointer for four rows keeps the addresses in registers.
  const float* quad[kWeights / 4];
#pragma GCC unroll 2
  for (int q = 0; q < kWeights / 4; ++q) quad[q] = w + 4 * q * depth;
  auto multiply = [&](int64_t k, auto load) __attribute__((always_inline)) {
    Vec a[kWeights];
#pragma GCC unroll 8
    for (int n = 0; n < kWeights; ++n) {
      a[n] = load(kWhole ? quad[n / 4] + n % 4 * depth + k : w + std::min(n, columns - 1) * depth + k);
    }
    if constexpr (kFetches) {
      for (int i = 0; i < ahead.count; ++i) __builtin_prefetch(ahead.rows + i * depth + k, 0, 3);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const Vec b = load(x + m * depth + k);
#pragma GCC unroll 8
      for (int n = 0; n < kWeights; ++n) sum[m][n] += a[n] * b;
    }
  };
  int64_t k = 0;
  for (; k + kLanes <= depth; k += kLanes) multiply(k, [](const float* p) { return Load(p); });
  if (const int64_t rest = depth - k; rest > 0) {
    ahead.count = 0;
    multiply(k, [rest](const float* p) { return LoadPart(p, rest); });
  }
  float add[kWeights] = {};
  if (bias != nullptr) std::memcpy(add, bias, columns * sizeof(float));
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    float result[kWeights];
#pragma GCC unroll 2
    for (int n = 0; n < kWeights; n += 4) {
      Quad more;
      std::memcpy(&more, add + n, sizeof(more));
      const Quad quad_sum = HorizontalSum4(sum[m][n], sum[m][n + 1], sum[m][n + 2], sum[m][n + 3]) + more;
      std::memcpy(result + n, &quad_sum, sizeof(quad_sum));
    }
    std::memcpy(y + m * y_stride, result, columns * sizeof(float));
  }
}

using DotFunction = void (*)(const float*, const float*, int64_t, const float*, int, float*, int64_t, Ahead);
template <bool kWhole>
constexpr DotFunction kDot[] = {Dot<1, kLoneRowWeights, kWhole>, Dot<2, kWeightRows, kWhole>,
                                Dot<3, kWeightRows, kWhole>,     Dot<4, kWeightRows, kWhole>,
                                Dot<5, kWeightRows, kWhole>,     Dot<6, kWeightRows, kWhole>};

// Rows [first, end) of W, all rows of x.
void LinearTask(const float* weights, const float* input, const float* add, float* output, int64_t rows,
                int64_t width, int64_t depth, int64_t first, int64_t end) {
  const int64_t groups = (rows + kInputRows - 1) / kInputRows;
  const int step = rows == 1 ? kLoneRowWeights : kWeightRows;
  for (int64_t panel = first; panel < end; panel += kPanelRows) {
    const int64_t panel_end = std::min(end, panel + kPanelRows);
    for (int64_t g = 0; g < groups; ++g) {
      // Groups of nearly equal size: 8 rows are 4 + 4, not 6 + 2.
      const int64_t m = rows * g / groups, count = rows * (g + 1) / groups - m;
      for (int64_t n = panel; n < panel_end; n += step) {
        const int columns = static_cast<int>(std::min<int64_t>(step, end - n));
        // The groups share out the fetching of the rows one panel ahead.
        Ahead ahead;
        const int64_t begin = kWeightRows * g / groups;
        if (n + kPanelRows + kWeightRows <= end) {
          ahead.rows = weights + (n + kPanelRows + begin) * depth;
          ahead.count = static_cast<int>(kWeightRows * (g + 1) / groups - begin);
        }
        const DotFunction dot = columns == step ? kDot<true>[count - 1] : kDot<false>[count - 1];
        dot(input + m * depth, weights + n * depth, depth, add ? add + n : nullptr, columns,
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
