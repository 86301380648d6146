// Attention of a block of query rows over the keys of one sequence, tile by tile.
//
// Keys are taken in tiles and segments whose borders are multiples of a constant in the sequence, and
// each row keeps its own running maximum. What a row's arithmetic does therefore depends on key
// positions only: not on its neighbours, on how a prompt was cut into chunks, or on where blocks lie.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gemm_tile.h"
#include "scratch.h"

namespace systolic {

constexpr int kTileKeys = 64;      // keys whose scores are made at once
constexpr int kSegmentKeys = 256;  // keys of one independent partial softmax

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Sizes, pointers and options that one call shares.
struct AttentionCall {
  int64_t tokens, q_heads, kv_heads, group, dim, dim_padded;
  int64_t num_blocks, block_size, table_width;
  const float* q;
  float* out;
  float* cache;
  const int32_t* table;
  const float* slopes;  // null: no ALiBi
  const float* sinks;   // null: no sinks
  float scale, soft_cap;
  int64_t window;  // 0: none
  bool causal;

  const float* Page(int32_t block, int kind, int64_t head) const {
    return cache + ((int64_t(block) * 2 + kind) * kv_heads + head) * block_size * dim;
  }
};

// Query rows [token, head of the group] of one sequence and one key/value head.
struct RowBlock {
  int64_t sequence, kv_head;
  int64_t first_token, tokens;  // in the flat token list
  int64_t first_position;       // of first_token in its sequence
  int64_t context;              // keys of the sequence

  int64_t FirstKey(const AttentionCall& call, int64_t token) const {
    int64_t position = first_position + token;
    return call.window > 0 ? std::max<int64_t>(0, position - call.window + 1) : 0;
  }
  int64_t EndKey(const AttentionCall& call, int64_t token) const {
    int64_t position = first_position + token;
    if (call.causal) return std::min(context, position + 1);
    return call.window > 0 ? std::min(context, position + call.window) : context;
  }
};

// A partial softmax of several rows: maximum score, sum of exponentials by lane, weighted values.
struct Partial {
  int64_t dim_padded;
  float* maximum;  // [rows]
  float* sum;      // [rows, kLanes]
  float* values;   // [rows, dim_padded]

  static int64_t Floats(int64_t rows, int64_t dim_padded) { return rows * (1 + kLanes + dim_padded); }

  Partial(float* memory, int64_t rows, int64_t dim_padded)
      : dim_padded(dim_padded), maximum(memory), sum(memory + rows), values(sum + rows * kLanes) {}

  void Clear(int64_t row) {
    maximum[row] = -kInfinity;
    Store(sum + row * kLanes, Vec{});
    std::fill_n(values + row * dim_padded, dim_padded, 0.0f);
  }

  bool Empty(int64_t row) const {
    return maximum[row] == -kInfinity && HorizontalSum(Load(sum + row * kLanes)) == 0;
  }

  // Adds row `from_row` of another partial to row `row`.
  __attribute__((noinline)) void Merge(int64_t row, const Partial& from, int64_t from_row) {
    if (from.Empty(from_row)) return;
    float* to_values = values + row * dim_padded;
    const float* from_values = from.values + from_row * dim_padded;
    if (Empty(row)) {
      maximum[row] = from.maximum[from_row];
      Store(sum + row * kLanes, Load(from.sum + from_row * kLanes));
      std::copy_n(from_values, dim_padded, to_values);
      return;
    }
    float top = std::max(maximum[row], from.maximum[from_row]);
    float keep = ExpNonPositive(maximum[row] - top), add = ExpNonPositive(from.maximum[from_row] - top);
    maximum[row] = top;
    Store(sum + row * kLanes, Load(sum + row * kLanes) * keep + Load(from.sum + from_row * kLanes) * add);
    for (int64_t d = 0; d < dim_padded; d += kLanes) {
      Store(to_values + d, Load(to_values + d) * keep + Load(from_values + d) * add);
    }
  }
};

// Scales the rows' queries into `to` [rows, dim].
inline void LoadQueries(const AttentionCall& call, const RowBlock& block, float* to) {
  for (int64_t t = 0; t < block.tokens; ++t) {
    const float* from =
        call.q + ((block.first_token + t) * call.q_heads + block.kv_head * call.group) * call.dim;
    for (int64_t i = 0; i < call.group * call.dim; ++i) to[i] = from[i] * call.scale;
    to += call.group * call.dim;
  }
}

// Keys [begin, end) of the tile at `tile`, transposed into `to` [dim, kTileKeys]; other columns keep
// what they held and are masked later.
inline void LoadKeys(const AttentionCall& call, const RowBlock& block, int64_t tile, int64_t begin,
                     int64_t end, float* to) {
  const int32_t* pages = call.table + block.sequence * call.table_width;
  for (int64_t key = begin; key < end;) {
    int64_t offset = key % call.block_size;
    int64_t count = std::min(end - key, call.block_size - offset);
    const float* page = call.Page(pages[key / call.block_size], 0, block.kv_head);
    for (int64_t j = 0; j < count;) {
      int64_t column = key + j - tile;
      const float* row = page + (offset + j) * call.dim;
      int64_t d = 0;
      // A whole square may read stale slots behind `end`: still this page, and masked.
      bool whole = offset + j + kLanes <= call.block_size && column + kLanes <= kTileKeys;
      int64_t step = whole ? std::min<int64_t>(kLanes, count - j) : 1;
      if (whole) {
        for (; d + kLanes <= call.dim; d += kLanes) {
          TransposeSquare(row + d, call.dim, to + d * kTileKeys + column, kTileKeys);
        }
      }
      for (; d < call.dim; ++d) {
        for (int64_t i = 0; i < step; ++i) to[d * kTileKeys + column + i] = row[i * call.dim + d];
      }
      j += step;
    }
    key += count;
  }
}

// Turns one row of raw scores [kTileKeys] into exp(score - maximum), 0 outside [begin, end), and
// brings the row's maximum and sum up to date. Returns the factor for what was summed before.
inline float SoftmaxRow(const AttentionCall& call, float* scores, int64_t begin, int64_t end, float slope,
                        float distance, float* maximum, float* sum) {
  constexpr int kVecs = kTileKeys / kLanes;
  const IVec lane = Iota();
  Vec score[kVecs];
  Vec top = Splat(-kInfinity);
#pragma GCC unroll 16
  for (int v = 0; v < kVecs; ++v) score[v] = Load(scores + v * kLanes);
  if (call.soft_cap > 0) {
    for (int v = 0; v < kVecs; ++v) score[v] = Tanh(score[v] / call.soft_cap) * call.soft_cap;
  }
  if (slope != 0) {
    for (int v = 0; v < kVecs; ++v) {
      score[v] += (__builtin_convertvector(lane + v * kLanes, Vec) + distance) * slope;
    }
  }
  if (begin > 0 || end < kTileKeys) {
    const int32_t low = static_cast<int32_t>(begin), high = static_cast<int32_t>(end);
    for (int v = 0; v < kVecs; ++v) {
      IVec column = lane + v * kLanes;
      score[v] = ((column >= low) & (column < high)) ? score[v] : Splat(-kInfinity);
    }
  }
#pragma GCC unroll 16
  for (int v = 0; v < kVecs; ++v) top = Max(top, score[v]);
  float before = *maximum;
  float now = std::max(before, HorizontalMax(top));
  *maximum = now;
  // With every score at -inf the difference below would be NaN instead of -inf.
  float base = now == -kInfinity ? 0.0f : now;
  Vec total = Vec{};
#pragma GCC unroll 16
  for (int v = 0; v < kVecs; ++v) {
    Vec e = ExpNonPositive(score[v] - base);
    Store(scores + v * kLanes, e);
    total += e;
  }
  float decay = before == now ? 1.0f : ExpNonPositive(before - base);
  Store(sum, Load(sum) * decay + total);
  return decay;
}

// Attends the rows over the keys of segment `segment` and leaves the result in `partial` (all rows).
inline void AttendSegment(const AttentionCall& call, const RowBlock& block, const float* queries,
                          int64_t segment, float* keys, float* values, Partial& partial) {
  const int64_t rows = block.tokens * call.group;
  const int64_t dim = call.dim;
  for (int64_t r = 0; r < rows; ++r) partial.Clear(r);
  const int64_t lowest = block.FirstKey(call, 0), highest = block.EndKey(call, block.tokens - 1);
  const int32_t* pages = call.table + block.sequence * call.table_width;
  // Packing pays when several row blocks share it, and is needed when rows are not whole vectors.
  const bool pack_values = rows > 2 * kRowBlock || call.dim_padded != dim;
  for (int64_t tile = segment * kSegmentKeys; tile < (segment + 1) * kSegmentKeys; tile += kTileKeys) {
    const int64_t begin = std::max(tile, lowest), end = std::min(tile + kTileKeys, highest);
    if (begin >= end) continue;
    LoadKeys(call, block, tile, begin, end, keys);
    if (pack_values) {
      for (int64_t key = begin; key < end; ++key) {
        const float* from = call.Page(pages[key / call.block_size], 1, block.kv_head) +
                            key % call.block_size * dim;
        std::copy_n(from, dim, values + (key - tile) * call.dim_padded);
      }
    }
    for (int64_t row = 0; row < rows; row += kRowBlock) {
      const int count = static_cast<int>(std::min<int64_t>(kRowBlock, rows - row));
      const int64_t group_begin = std::max(tile, block.FirstKey(call, row / call.group));
      const int64_t group_end =
          std::min(tile + kTileKeys, block.EndKey(call, (row + count - 1) / call.group));
      if (group_begin >= group_end) continue;
      alignas(64) float scores[kRowBlock * kTileKeys];
      float decay[kRowBlock];
      Multiply(count, queries + row * dim, dim, keys, kTileKeys, dim, nullptr, scores, kTileKeys,
               kTileKeys / kLanes);
      for (int r = 0; r < count; ++r) {
        const int64_t token = (row + r) / call.group, head = (row + r) % call.group;
        const int64_t row_begin = block.FirstKey(call, token), row_end = block.EndKey(call, token);
        if (row_begin >= tile + kTileKeys || row_end <= tile) {
          // Nothing of this tile is visible: leave the row's partial result bit for bit.
          std::fill_n(scores + r * kTileKeys, kTileKeys, 0.0f);
          decay[r] = 1.0f;
          continue;
        }
        const float slope = call.slopes ? call.slopes[block.kv_head * call.group + head] : 0.0f;
        const float distance = static_cast<float>(tile - (block.first_position + token));
        decay[r] = SoftmaxRow(call, scores + r * kTileKeys, row_begin - tile, row_end - tile, slope,
                              distance, partial.maximum + row + r, partial.sum + (row + r) * kLanes);
      }
      float* sums = partial.values + row * call.dim_padded;
      const int64_t vecs = call.dim_padded / kLanes;
      if (pack_values) {
        Multiply(count, scores + (group_begin - tile), kTileKeys,
                 values + (group_begin - tile) * call.dim_padded, call.dim_padded, group_end - group_begin,
                 decay, sums, call.dim_padded, vecs);
        continue;
      }
      for (int64_t key = group_begin; key < group_end;) {
        const int64_t offset = key % call.block_size;
        const int64_t keys_here = std::min(group_end - key, call.block_size - offset);
        const float* page = call.Page(pages[key / call.block_size], 1, block.kv_head) + offset * dim;
        Multiply(count, scores + (key - tile), kTileKeys, page, dim, keys_here, decay, sums, call.dim_padded,
                 vecs);
        std::fill_n(decay, kRowBlock, 1.0f);
        key += keys_here;
      }
    }
  }
}

// The state before any key: empty, or the head's sink with weight 1.
inline void StartTotal(const AttentionCall& call, const RowBlock& block, Partial& total) {
  const int64_t rows = block.tokens * call.group;
  for (int64_t r = 0; r < rows; ++r) {
    total.Clear(r);
    if (call.sinks == nullptr) continue;
    const float sink = call.sinks[block.kv_head * call.group + r % call.group];
    if (sink == -kInfinity) continue;
    total.maximum[r] = sink;
    total.sum[r * kLanes] = 1.0f;
  }
}

// Divides by the sums and writes the rows' outputs; rows that saw no key give zeros.
inline void WriteOutput(const AttentionCall& call, const RowBlock& block, const Partial& total) {
  for (int64_t r = 0; r < block.tokens * call.group; ++r) {
    float* to = call.out + ((block.first_token + r / call.group) * call.q_heads +
                            block.kv_head * call.group + r % call.group) * call.dim;
    const float sum = HorizontalSum(Load(total.sum + r * kLanes));
    const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
    const float* from = total.values + r * call.dim_padded;
    for (int64_t d = 0; d < call.dim; ++d) to[d] = from[d] * inverse;
  }
}

}  // namespace systolic
