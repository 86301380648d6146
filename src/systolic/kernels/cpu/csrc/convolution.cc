// XLA custom call: 2-D convolution of float32 images, as a product of the weights [O, C * KH * KW] and the patches
// [C * KH * KW, pixels]. A thread gathers the patches of a block of pixels into panels in its cache; the whole matrix
// of patches is never made.

#include "parallel.h"
#include "product.h"

namespace systolic {
namespace {

namespace ffi = xla::ffi;
using product::kPanelColumns;

struct Convolution {
  const float *x, *w;                            // x has its borders of zeros, and kPanelColumns floats after the last
  float* y;
  int64_t images, channels, height, width;       // of x with its borders
  int64_t outputs, out_height, out_width;        // of y
  int64_t kernel_height, kernel_width;
  int64_t stride_y, stride_x, dilation_y, dilation_x;

  int64_t Depth() const { return channels * kernel_height * kernel_width; }
  int64_t Pixels() const { return out_height * out_width; }

  // Pixels of one row of one image: where their patches start in x, and their columns of the panel.
  struct Run {
    const float* corner;
    int64_t column, count;
  };

  // The patches of pixels [first, end) of all images, at most a panel of them, as [Depth(), kPanelColumns]. Writes up
  // to kPanelColumns floats more; columns past the end hold anything.
  void Gather(int64_t first, int64_t end, float* panel) const {
    Run runs[kPanelColumns];
    int64_t number = 0;
    for (int64_t at = first; at < end; at += runs[number++].count) {
      const int64_t image = at / Pixels(), pixel = at % Pixels();
      const int64_t row = pixel / out_width, column = pixel % out_width;
      runs[number] = {x + (image * channels * height + row * stride_y) * width + column * stride_x, at - first,
                      std::min(end - at, out_width - column)};
    }
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t i = 0; i < kernel_height; ++i) {
        const int64_t line = (c * height + i * dilation_y) * width;
        for (int64_t j = 0; j < kernel_width; ++j, panel += kPanelColumns) {
          for (int64_t r = 0; r < number; ++r) Copy(runs[r], line + j * dilation_x, panel);
        }
      }
    }
  }

  // Whole vectors: what they write past the run, later runs and later rows of the panel overwrite.
  SYSTOLIC_INLINE void Copy(const Run& run, int64_t offset, float* panel) const {
    const float* from = run.corner + offset;
    float* to = panel + run.column;
    if (stride_x == 1) {
      Store(to, Load(from));
      if (run.count > kLanes) Store(to + kLanes, Load(from + kLanes));
    } else {
      for (int64_t n = 0; n < run.count; ++n) to[n] = from[n * stride_x];
    }
  }

  // `rows` rows of a tile, from output channel `channel` on, to pixels [first, end).
  void Scatter(const float* tile, int64_t rows, int64_t channel, int64_t first, int64_t end) const {
    for (int64_t at = first; at < end;) {
      const int64_t image = at / Pixels(), pixel = at % Pixels();
      const int64_t count = std::min(end - at, Pixels() - pixel);
      float* to = y + (image * outputs + channel) * Pixels() + pixel;
      for (int64_t m = 0; m < rows; ++m) std::copy_n(tile + m * kPanelColumns + (at - first), count, to + m * Pixels());
      at += count;
    }
  }
};

// x with its borders: planes [height, width] become [height + 2 pad_y, width + 2 pad_x], then kPanelColumns zeros.
const float* Padded(ffi::ThreadPool& pool, const float* x, int64_t planes, int64_t height, int64_t width, int64_t pad_y,
                    int64_t pad_x, Scratch& scratch) {
  const int64_t wide = width + 2 * pad_x, plane = (height + 2 * pad_y) * wide;
  float* to = scratch.Get(planes * plane + kPanelColumns);
  std::fill_n(to + planes * plane, kPanelColumns, 0.0f);
  ParallelFor(pool, planes, [=](int64_t p) {
    float* out = to + p * plane;
    out = std::fill_n(out, pad_y * wide, 0.0f);
    for (int64_t row = 0; row < height; ++row) {
      out = std::fill_n(out, pad_x, 0.0f);
      out = std::copy_n(x + (p * height + row) * width, width, out);
      out = std::fill_n(out, pad_x, 0.0f);
    }
    std::fill_n(out, pad_y * wide, 0.0f);
  });
  return to;
}

ffi::Error ConvolutionCall(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::F32> w,
                           ffi::ResultBuffer<ffi::F32> y, ffi::Span<const int64_t> stride,
                           ffi::Span<const int64_t> padding, ffi::Span<const int64_t> dilation) {
  static thread_local Scratch scratch;
  const auto in = x.dimensions(), kernel = w.dimensions(), out = y->dimensions();
  static thread_local Scratch borders;
  const float* padded =
      Padded(pool, x.typed_data(), in[0] * in[1], in[2], in[3], padding[0], padding[1], borders);
  const Convolution conv{padded, w.typed_data(), y->typed_data(), in[0], in[1], in[2] + 2 * padding[0],
                         in[3] + 2 * padding[1], out[1], out[2], out[3], kernel[2], kernel[3],
                         stride[0], stride[1], dilation[0], dilation[1]};
  const int64_t columns = conv.images * conv.Pixels(), depth = conv.Depth();
  if (columns == 0 || conv.outputs == 0) return ffi::Error::Success();
  const product::Plan plan(conv.outputs, columns, depth, 1, pool.num_threads());
  ParallelFor(pool, plan.blocks * plan.chunks, [&](int64_t task) {
    const int64_t chunk = task % plan.chunks, block = task / plan.chunks;
    const int64_t first = block * plan.panels * kPanelColumns;
    const int64_t end = std::min(columns, first + plan.panels * kPanelColumns);
    const int64_t floats = plan.panels * depth * kPanelColumns;
    float* panels = scratch.Get(floats + kPanelColumns + product::kRows * kPanelColumns);
    float* tile = panels + floats + kPanelColumns;
    for (int64_t n = first; n < end; n += kPanelColumns) {
      conv.Gather(n, std::min(end, n + kPanelColumns), panels + (n - first) * depth);
    }
    const int64_t last_row = std::min(conv.outputs, (chunk + 1) * plan.rows);
    for (int64_t m = chunk * plan.rows, taken; m < last_row; m += taken) {
      for (int64_t n = first; n < end; n += kPanelColumns) {
        taken = product::TakeRows(conv.w + m * depth, last_row - m, depth, panels + (n - first) * depth, tile);
        conv.Scatter(tile, taken, m, n, std::min(end, n + kPanelColumns));
      }
    }
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(SystolicConvolution, ConvolutionCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()  // x [N, C, H, W]
                                  .Arg<ffi::Buffer<ffi::F32>>()  // w [O, C, KH, KW]
                                  .Ret<ffi::Buffer<ffi::F32>>()  // y [N, O, OH, OW]
                                  .Attr<ffi::Span<const int64_t>>("stride")
                                  .Attr<ffi::Span<const int64_t>>("padding")
                                  .Attr<ffi::Span<const int64_t>>("dilation"));

}  // namespace systolic
