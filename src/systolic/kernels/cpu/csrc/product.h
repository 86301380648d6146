// C = A B for row-major A [M, K], with the columns of B packed into panels by the caller.
//
// Vectors run along the columns of B; a panel [K, kPanelColumns] stays in the level-2 cache while the rows of A pass by,
// one broadcast for each element.
#pragma once

#include <algorithm>
#include <cstdint>

#include "scratch.h"
#include "vec.h"

namespace systolic::product {

constexpr int kRows = kLanes >= 16 ? 12 : 6;  // accumulators of one tile: 12 x 2 of 32 registers, 6 x 2 of 16
constexpr int kVecs = 2;
constexpr int kPanelColumns = kVecs * kLanes;

// The products of R rows of A and one panel, as to[row * kPanelColumns + column].
template <int R>
inline __attribute__((noinline)) void Tile(const float* a, int64_t depth, const float* panel, float* to) {
  Vec sum[R][kVecs];
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) sum[m][v] = Vec{};
  }
  // A pointer for four rows keeps the addresses in registers.
  constexpr int kQuads = (R + 3) / 4;
  const float* quad[kQuads];
#pragma GCC unroll 4
  for (int q = 0; q < kQuads; ++q) quad[q] = a + 4 * q * depth;
  for (int64_t k = 0; k < depth; ++k, panel += kPanelColumns) {
    const Vec first = Load(panel), second = Load(panel + kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < R; ++m) {
      const Vec factor = Splat(quad[m / 4][m % 4 * depth + k]);
      sum[m][0] += factor * first;
      sum[m][1] += factor * second;
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m) {
    Store(to + m * kPanelColumns, sum[m][0]);
    Store(to + m * kPanelColumns + kLanes, sum[m][1]);
  }
}

// Rows [0, rows) of A, at most kRows of them; returns how many were taken.
inline int64_t TakeRows(const float* a, int64_t rows, int64_t depth, const float* panel, float* to) {
  if (rows >= kRows) return Tile<kRows>(a, depth, panel, to), kRows;
  if constexpr (kRows > 8) {
    if (rows >= 8) return Tile<8>(a, depth, panel, to), 8;
  }
  if (rows >= 4) return Tile<4>(a, depth, panel, to), 4;
  if (rows >= 2) return Tile<2>(a, depth, panel, to), 2;
  return Tile<1>(a, depth, panel, to), 1;
}

// How one product is cut into tasks: `blocks` of `panels` panels of columns, times `chunks` of `rows` rows of A.
struct Plan {
  int64_t panels, blocks, rows, chunks;

  Plan(int64_t all_rows, int64_t columns, int64_t depth, int64_t products, int64_t threads) {
    constexpr int64_t kBlockFloats = 1 << 16;  // a block of panels: half of a level-2 cache of 512 KiB
    constexpr int64_t kTasksPerThread = 4;     // so that threads of unequal speed end together
    const int64_t all = (columns + kPanelColumns - 1) / kPanelColumns;
    panels = std::clamp<int64_t>(kBlockFloats / std::max<int64_t>(1, depth * kPanelColumns), 1, std::min<int64_t>(4, all));
    blocks = (all + panels - 1) / panels;
    const int64_t wanted = (kTasksPerThread * threads + blocks * products - 1) / (blocks * products);
    // A chunk has rows enough for the packing of its panels to be small beside it.
    const int64_t most = std::max<int64_t>(1, all_rows / (4 * kRows));
    chunks = std::clamp<int64_t>(wanted, 1, most);
    rows = RoundUp((all_rows + chunks - 1) / chunks, kRows);
    chunks = (all_rows + rows - 1) / rows;
  }
};

}  // namespace systolic::product
