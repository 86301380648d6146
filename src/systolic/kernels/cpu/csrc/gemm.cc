// XLA custom call: y = x W^T + b for many rows of x, at the speed of the multiply-add units.
//
// Vectors run along the rows of x. A thread packs a block of x, transposed, into panels [K, kPanelRows]
// that stay in its level-2 cache, and reads W as stored, one broadcast for each weight. So W, which is
// usually the larger one, is neither copied nor transposed; what is transposed is x, once, and the
// finished tiles of y.

#include <algorithm>
#include <atomic>
#include <vector>

#include "parallel.h"
#include "scratch.h"

namespace systolic {
namespace {

namespace ffi = xla::ffi;

// Accumulators of one tile: 12 x 2 of 32 registers, 4 x 3 of 16. The first is a multiple of 4.
constexpr int kTileWeights = kLanes >= 16 ? 12 : 4;
constexpr int kTileVecs = kLanes >= 16 ? 2 : 3;
constexpr int kPanelRows = kTileVecs * kLanes;
constexpr int64_t kStripWeights = 48;      // rows of W that stay in the level-2 cache while panels pass by
constexpr int64_t kBlockFloats = 1 << 17;  // a packed block of x: half of a level-2 cache of 1 MiB
constexpr int64_t kLeastPanels = 4;         // of a block, where it is not the cache that bounds it
constexpr int64_t kTasksPerThread = 16;     // so that threads of unequal speed end together

// Memory of the next rows of W, fetched little by little while a tile is computed.
struct Ahead {
  const char* next;
  int64_t step;  // bytes for each k
};

// Writes sum[weight][row of x] as to[row * stride + weight]: 4 x 4 squares inside groups of four lanes.
template <int kWeights, int kVecs>
SYSTOLIC_INLINE void StoreTransposed(const Vec (&sum)[kWeights][kVecs], float* to, int64_t stride) {
  const IVec lane = Iota();
  const IVec pairs = (lane & ~3) + ((lane & 3) >> 1) + (lane & 1) * kLanes;
  const IVec halves = (lane & ~3) + (lane & 1) + ((lane & 2) >> 1) * kLanes;
#pragma GCC unroll 4
  for (int n = 0; n < kWeights; n += 4) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      const Vec a = sum[n][v], b = sum[n + 1][v], c = sum[n + 2][v], d = sum[n + 3][v];
      const Vec ab_low = __builtin_shuffle(a, b, pairs), ab_high = __builtin_shuffle(a, b, pairs + 2);
      const Vec cd_low = __builtin_shuffle(c, d, pairs), cd_high = __builtin_shuffle(c, d, pairs + 2);
      const Vec quads[4] = {__builtin_shuffle(ab_low, cd_low, halves),
                            __builtin_shuffle(ab_low, cd_low, halves + 2),
                            __builtin_shuffle(ab_high, cd_high, halves),
                            __builtin_shuffle(ab_high, cd_high, halves + 2)};
#pragma GCC unroll 16
      for (int row = 0; row < kLanes; ++row) {
        const float* quad = reinterpret_cast<const float*>(&quads[row % 4]) + row / 4 * 4;
        std::memcpy(to + (v * kLanes + row) * stride + n, quad, 4 * sizeof(float));
      }
    }
  }
}

// y[0..rows, 0..columns] for the rows of one panel and kWeights rows of W, the first `columns` of which
// are real. Each element has one accumulator that runs over k in rising order, so its bits depend
// neither on the tile's shape nor on the other rows.
template <int kWeights, int kVecs>
inline __attribute__((noinline)) void Tile(const float* panel, const float* w, int64_t depth,
                                           const float* bias, int rows, int columns, float* y,
                                           int64_t y_stride, Ahead ahead) {
  Vec sum[kWeights][kVecs];
#pragma GCC unroll 16
  for (int n = 0; n < kWeights; ++n) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) sum[n][v] = Vec{};
  }
  const float* w_quad[kWeights / 4];
#pragma GCC unroll 4
  for (int q = 0; q < kWeights / 4; ++q) w_quad[q] = w + 4 * q * depth;
  // One k of every element; `fetch` brings something closer meanwhile.
  auto multiply = [&](int64_t k, auto fetch) __attribute__((always_inline)) {
    Vec column[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) column[v] = Load(panel + v * kLanes);
    panel += kVecs * kLanes;
    fetch();
#pragma GCC unroll 16
    for (int n = 0; n < kWeights; ++n) {
      const Vec factor = Splat(w_quad[n / 4][n % 4 * depth + k]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sum[n][v] += factor * column[v];
    }
  };
  // First the lines of y, so that the stores below need not wait for memory; then W.
  const int64_t begin = std::min<int64_t>(rows, depth);
  const float* target = y;
  for (int64_t k = 0; k < begin; ++k) {
    multiply(k, [&] {
      __builtin_prefetch(target, 1, 3);
      __builtin_prefetch(target + columns - 1, 1, 3);
      target += y_stride;
    });
  }
  for (int64_t k = begin; k < depth; ++k) {
    multiply(k, [&] {
      __builtin_prefetch(ahead.next, 0, 2);
      ahead.next += ahead.step;
    });
  }
  if (bias != nullptr) {
#pragma GCC unroll 16
    for (int n = 0; n < kWeights; ++n) {
      const float add = n < columns ? bias[n] : 0.0f;
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sum[n][v] += add;
    }
  }
  if (rows == kVecs * kLanes && columns == kWeights) return StoreTransposed(sum, y, y_stride);
  float whole[kVecs * kLanes * kWeights];
  StoreTransposed(sum, whole, kWeights);
  for (int row = 0; row < rows; ++row) std::copy_n(whole + row * kWeights, columns, y + row * y_stride);
}

using TileFunction = void (*)(const float*, const float*, int64_t, const float*, int, int, float*, int64_t,
                              Ahead);

// By the number of vectors of the panel, less one.
template <int kWeights>
constexpr TileFunction kTiles[] = {Tile<kWeights, 1>, Tile<kWeights, 2>, Tile<kWeights, kTileVecs>};

TileFunction ChooseTile(int64_t weights, int64_t vecs) {
  if constexpr (kTileWeights > 4) {
    if (weights > 8) return kTiles<kTileWeights>[vecs - 1];
    if (weights > 4) return kTiles<8>[vecs - 1];
  }
  return kTiles<4>[vecs - 1];
}

int64_t PanelVecs(int64_t rows) { return (std::min<int64_t>(rows, kPanelRows) + kLanes - 1) / kLanes; }

// `rows` rows of x, at most kPanelRows, as [depth, vectors of rows]; rows that are missing become zeros.
void PackPanel(const float* x, int64_t rows, int64_t depth, float* to) {
  const int64_t stride = PanelVecs(rows) * kLanes;
  for (int64_t m = 0; m < stride; m += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, rows - m);
    int64_t k = 0;
    if (count == kLanes) {
      for (; k + kLanes <= depth; k += kLanes) {
        TransposeSquare(x + m * depth + k, depth, to + k * stride + m, stride);
      }
    }
    for (; k < depth; ++k) {
      for (int64_t i = 0; i < kLanes; ++i) to[k * stride + m + i] = i < count ? x[(m + i) * depth + k] : 0.0f;
    }
  }
}

// The packed block of x and the padded last rows of W of one thread.
struct ThreadState {
  Scratch block, weights;
  uint64_t call = 0;  // whose block it is, and which one
  int64_t first_row = 0;
};

struct Gemm {
  const float *x, *w, *bias;  // bias may be null
  float* y;
  int64_t rows, width, depth;
  int64_t block_rows, range;  // rows of x and of W of one task
  int64_t skip;               // rows of W that the other threads take between two tasks of one thread
  uint64_t id;                // of this call, never zero

  // Rows [row, row + block_rows) of x and [first, end) of W.
  void Task(ThreadState& state, int64_t row, int64_t first, int64_t end) const {
    const int64_t count = std::min(block_rows, rows - row);
    const int64_t panels = (count + kPanelRows - 1) / kPanelRows;
    float* block = state.block.Get(block_rows * std::max<int64_t>(depth, 1));
    if (state.call != id || state.first_row != row) {
      for (int64_t m = 0; m < count; m += kPanelRows) {
        PackPanel(x + (row + m) * depth, std::min<int64_t>(kPanelRows, count - m), depth, block + m * depth);
      }
      state.call = id;
      state.first_row = row;
    }
    for (int64_t strip = first; strip < end; strip += kStripWeights) {
      const int64_t strip_end = std::min(end, strip + kStripWeights);
      // The tiles share out the fetching of the next strip of W, after the last one of the strip that
      // this thread will probably get next.
      const int64_t following = strip_end < end ? strip_end : end + skip;
      const bool more = following + kStripWeights <= width;
      const int64_t step = more ? kTileWeights * int64_t{sizeof(float)} / panels : 0;
      const char* next = reinterpret_cast<const char*>(w + (more ? following : strip) * depth);
      for (int64_t m = 0; m < count; m += kPanelRows) {
        const int64_t panel_rows = std::min<int64_t>(kPanelRows, count - m);
        for (int64_t n = strip; n < strip_end; n += kTileWeights) {
          const int64_t columns = std::min<int64_t>(kTileWeights, strip_end - n);
          const float* weights = w + n * depth;
          if (columns % 4 != 0) {
            // A tile reads whole groups of four rows.
            const int64_t padded = RoundUp(columns, 4);
            float* copy = state.weights.Get(kTileWeights * std::max<int64_t>(depth, 1));
            std::fill_n(std::copy_n(weights, columns * depth, copy), (padded - columns) * depth, 0.0f);
            weights = copy;
          }
          ChooseTile(columns, PanelVecs(panel_rows))(
              block + m * depth, weights, depth, bias ? bias + n : nullptr, static_cast<int>(panel_rows),
              static_cast<int>(columns), y + (row + m) * width + n, width, Ahead{next, step});
          next += step * depth;
        }
      }
    }
  }
};

ffi::Error GemmCall(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::F32> w,
                    ffi::Buffer<ffi::F32> bias, ffi::ResultBuffer<ffi::F32> y) {
  static std::atomic<uint64_t> calls{0};
  static thread_local ThreadState state;
  Gemm gemm;
  gemm.x = x.typed_data();
  gemm.w = w.typed_data();
  gemm.bias = bias.element_count() > 0 ? bias.typed_data() : nullptr;
  gemm.y = y->typed_data();
  gemm.rows = x.dimensions()[0];
  gemm.depth = x.dimensions()[1];
  gemm.width = w.dimensions()[0];
  gemm.id = calls.fetch_add(1, std::memory_order_relaxed) + 1;
  if (gemm.rows == 0 || gemm.width == 0) return ffi::Error::Success();

  // Blocks of nearly equal size that fit the cache, at least one a thread where there are panels enough; then as
  // many ranges of W as balance asks for, each large enough for the packing of its block to be small beside it.
  const int64_t threads = std::max<int64_t>(1, pool.num_threads());
  const int64_t fitting = std::max<int64_t>(1, kBlockFloats / std::max<int64_t>(gemm.depth, 1) / kPanelRows);
  const int64_t panels = (gemm.rows + kPanelRows - 1) / kPanelRows;
  int64_t blocks = std::max((panels + fitting - 1) / fitting, std::min(threads, panels / kLeastPanels));
  gemm.block_rows = (panels + blocks - 1) / blocks * kPanelRows;
  blocks = (gemm.rows + gemm.block_rows - 1) / gemm.block_rows;
  const int64_t wanted = kTasksPerThread * threads / blocks;
  const int64_t share = gemm.width / std::max<int64_t>(1, wanted);
  gemm.range = RoundUp(std::max(share, kStripWeights), kTileWeights);
  const int64_t ranges = (gemm.width + gemm.range - 1) / gemm.range;
  gemm.skip = blocks < threads ? gemm.range * (threads - 1) : 0;
  // A thread stays with its block, which it has to pack only once, and helps with the others at the end.
  std::vector<std::atomic<int64_t>> next(blocks);
  ParallelFor(pool, threads, [&](int64_t thread) {
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t block = (thread * blocks / threads + i) % blocks;
      for (int64_t range; (range = next[block].fetch_add(1, std::memory_order_relaxed)) < ranges;) {
        const int64_t first = range * gemm.range;
        gemm.Task(state, block * gemm.block_rows, first, std::min(gemm.width, first + gemm.range));
      }
    }
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(SystolicGemm, GemmCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()    // x
                                  .Arg<ffi::Buffer<ffi::F32>>()    // weights
                                  .Arg<ffi::Buffer<ffi::F32>>()    // bias or empty
                                  .Ret<ffi::Buffer<ffi::F32>>());  // y

}  // namespace systolic
