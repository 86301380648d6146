// XLA custom call: C[i] = A[i] B[i] for a batch of float32 matrices, row-major but for B where `transposed` is set.

#include "parallel.h"
#include "product.h"

namespace systolic {
namespace {

namespace ffi = xla::ffi;
using product::kPanelColumns;

// A panel [depth, kPanelColumns] of `count` columns, from rows that are `stride` apart; the rest are zeros.
void PackRows(const float* from, int64_t stride, int64_t count, int64_t depth, float* to) {
  for (int64_t k = 0; k < depth; ++k, to += kPanelColumns) {
    std::copy_n(from + k * stride, count, to);
    std::fill(to + count, to + kPanelColumns, 0.0f);
  }
}

// The same from contiguous columns.
void PackColumns(const float* from, int64_t count, int64_t depth, float* to) {
  for (int64_t n = 0; n < kPanelColumns; n += kLanes) {
    const int64_t present = std::clamp<int64_t>(count - n, 0, kLanes);
    int64_t k = 0;
    if (present == kLanes) {
      for (; k + kLanes <= depth; k += kLanes) {
        TransposeSquare(from + n * depth + k, depth, to + k * kPanelColumns + n, kPanelColumns);
      }
    }
    for (; k < depth; ++k) {
      for (int64_t i = 0; i < kLanes; ++i) {
        to[k * kPanelColumns + n + i] = i < present ? from[(n + i) * depth + k] : 0.0f;
      }
    }
  }
}

ffi::Error BatchedMatmulCall(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> a, ffi::Buffer<ffi::F32> b,
                             ffi::ResultBuffer<ffi::F32> c, bool transposed) {
  static thread_local Scratch scratch;
  const int64_t batch = a.dimensions()[0], rows = a.dimensions()[1], depth = a.dimensions()[2];
  const int64_t columns = b.dimensions()[2];
  if (batch == 0 || rows == 0 || columns == 0) return ffi::Error::Success();
  const product::Plan plan(rows, columns, depth, batch, pool.num_threads());
  ParallelFor(pool, batch * plan.blocks * plan.chunks, [&](int64_t task) {
    const int64_t chunk = task % plan.chunks, block = task / plan.chunks % plan.blocks;
    const int64_t item = task / plan.chunks / plan.blocks;
    const float* left = a.typed_data() + item * rows * depth;
    const float* right = b.typed_data() + item * depth * columns;
    float* to = c->typed_data() + item * rows * columns;
    const int64_t first = block * plan.panels * kPanelColumns;
    const int64_t end = std::min(columns, first + plan.panels * kPanelColumns);
    float* panels = scratch.Get(plan.panels * depth * kPanelColumns + product::kRows * kPanelColumns);
    float* tile = panels + plan.panels * depth * kPanelColumns;
    float* packed = panels;
    for (int64_t n = first; n < end; n += kPanelColumns) {
      const int64_t count = std::min<int64_t>(kPanelColumns, end - n);
      if (transposed) {
        PackColumns(right + n * depth, count, depth, packed);
      } else {
        PackRows(right + n, columns, count, depth, packed);
      }
      packed += depth * kPanelColumns;
    }
    const int64_t last_row = std::min(rows, (chunk + 1) * plan.rows);
    for (int64_t m = chunk * plan.rows, taken; m < last_row; m += taken) {
      const float* panel = panels;
      for (int64_t n = first; n < end; n += kPanelColumns, panel += depth * kPanelColumns) {
        taken = product::TakeRows(left + m * depth, last_row - m, depth, panel, tile);
        const int64_t count = std::min<int64_t>(kPanelColumns, end - n);
        for (int64_t i = 0; i < taken; ++i) std::copy_n(tile + i * kPanelColumns, count, to + (m + i) * columns + n);
      }
    }
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(SystolicBatchedMatmul, BatchedMatmulCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()    // a [B, M, K]
                                  .Arg<ffi::Buffer<ffi::F32>>()    // b [B, K, N], or that in memory as [B, N, K]
                                  .Ret<ffi::Buffer<ffi::F32>>()    // c [B, M, N]
                                  .Attr<bool>("transposed"));

}  // namespace systolic
