// XLA custom call: writes new keys and values into a paged cache and attends over it.
//
// Cache layout: float32 [num_blocks, 2, kv_heads, block_size, dim], keys at index 0 of the second
// dimension. One head's page is contiguous, so a task streams through whole pages.

#include <string>

#include "attention_tile.h"
#include "parallel.h"

namespace systolic {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kTaskRows = 192;  // query rows of one prefill task: their partial sums fit a level-2 cache

std::string Text(const char* what, int64_t index, const char* verb, int64_t value, const char* limit,
                 int64_t bound) {
  return std::string(what) + "[" + std::to_string(index) + "] " + verb + " " + std::to_string(value) + limit +
         std::to_string(bound);
}

ffi::Error CheckSequences(const AttentionCall& call, int64_t sequences, const int32_t* lengths,
                          const int32_t* starts) {
  if (sequences > 0 && starts[0] < 0) {
    return ffi::Error::InvalidArgument(Text("query_start_loc", 0, "is", starts[0], ", below ", 0));
  }
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t queries = int64_t(starts[s + 1]) - starts[s];
    if (queries < 0 || starts[s + 1] > call.tokens) {
      return ffi::Error::InvalidArgument(
          Text("query_start_loc", s + 1, "is", starts[s + 1],
               "; it must not fall and must stay within the tokens: ", call.tokens));
    }
    if (lengths[s] < queries) {
      return ffi::Error::InvalidArgument(
          Text("seq_lens", s, "is", lengths[s], ", below the sequence's new tokens: ", queries));
    }
    if (lengths[s] > call.table_width * call.block_size) {
      return ffi::Error::InvalidArgument(
          Text("seq_lens", s, "is", lengths[s], ", above what the block table can hold: ",
               call.table_width * call.block_size));
    }
    if (queries == 0) continue;
    const int64_t first = call.window > 0 ? std::max<int64_t>(0, lengths[s] - queries - call.window + 1) : 0;
    for (int64_t p = first / call.block_size; p * call.block_size < lengths[s]; ++p) {
      const int32_t block = call.table[s * call.table_width + p];
      if (block < 0 || block >= call.num_blocks) {
        return ffi::Error::InvalidArgument(Text("block_table row", s, "names block", block,
                                                " but the cache's number of blocks is ", call.num_blocks));
      }
    }
  }
  return ffi::Error::Success();
}

template <typename Slot>
ffi::Error WriteCache(ffi::ThreadPool& pool, const AttentionCall& call, const float* k, const float* v,
                      const Slot* slots) {
  for (int64_t t = 0; t < call.tokens; ++t) {
    if (slots[t] < -1 || slots[t] >= call.num_blocks * call.block_size) {
      return ffi::Error::InvalidArgument(Text("slot_mapping", t, "is", slots[t],
                                              "; it must be -1 or below the cache's number of slots: ",
                                              call.num_blocks * call.block_size));
    }
  }
  auto write = [&](int64_t t) {
    if (slots[t] < 0) return;
    const int64_t block = slots[t] / call.block_size, offset = slots[t] % call.block_size;
    for (int64_t h = 0; h < call.kv_heads; ++h) {
      const int64_t from = (t * call.kv_heads + h) * call.dim;
      float* to = const_cast<float*>(call.Page(block, 0, h)) + offset * call.dim;
      std::copy_n(k + from, call.dim, to);
      std::copy_n(v + from, call.dim, to + call.kv_heads * call.block_size * call.dim);
    }
  };
  constexpr int64_t kChunk = 64;
  ParallelFor(pool, (call.tokens + kChunk - 1) / kChunk, [&](int64_t chunk) {
    for (int64_t t = chunk * kChunk; t < std::min(call.tokens, (chunk + 1) * kChunk); ++t) write(t);
  });
  return ffi::Error::Success();
}

// A row block with its range of segments; `split` tasks do one segment and leave it in shared memory.
struct Task {
  RowBlock block;
  int64_t first_segment, end_segment;
  int64_t partial = -1;  // float offset of the shared partial result, -1: none
  int64_t cost;
};

void RunTask(const AttentionCall& call, const Task& task, float* shared) {
  static thread_local Scratch scratch;
  const RowBlock& block = task.block;
  const int64_t rows = block.tokens * call.group;
  const int64_t partial_floats = RoundUp(Partial::Floats(rows, call.dim_padded), 16);
  const int64_t query_floats = RoundUp(rows * call.dim, 16);
  const int64_t tile_floats = kTileKeys * call.dim_padded;
  float* queries = scratch.Get(query_floats + 2 * tile_floats + 2 * partial_floats);
  float* keys = queries + query_floats;
  float* values = keys + tile_floats;
  float* memory = values + tile_floats;
  // Columns behind dim are multiplied too; keep them finite.
  if (call.dim_padded != call.dim) std::fill_n(values, tile_floats, 0.0f);
  LoadQueries(call, block, queries);
  if (task.partial >= 0) {
    Partial partial(shared + task.partial, rows, call.dim_padded);
    AttendSegment(call, block, queries, task.first_segment, keys, values, partial);
    return;
  }
  Partial partial(memory, rows, call.dim_padded), total(memory + partial_floats, rows, call.dim_padded);
  StartTotal(call, block, total);
  for (int64_t segment = task.first_segment; segment < task.end_segment; ++segment) {
    AttendSegment(call, block, queries, segment, keys, values, partial);
    for (int64_t r = 0; r < rows; ++r) total.Merge(r, partial, r);
  }
  WriteOutput(call, block, total);
}

void Attend(ffi::ThreadPool& pool, const AttentionCall& call, int64_t sequences, const int32_t* lengths,
            const int32_t* starts) {
  const int64_t tile_tokens = std::max<int64_t>(1, kTaskRows / call.group);
  std::vector<Task> blocks;
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t queries = starts[s + 1] - starts[s];
    for (int64_t h = 0; h < call.kv_heads; ++h) {
      for (int64_t q = 0; q < queries; q += tile_tokens) {
        Task task;
        task.block = {s, h, starts[s] + q, std::min(tile_tokens, queries - q), lengths[s] - queries + q,
                      lengths[s]};
        const int64_t first = task.block.FirstKey(call, 0);
        const int64_t end = task.block.EndKey(call, task.block.tokens - 1);
        task.first_segment = first / kSegmentKeys;
        task.end_segment = (end + kSegmentKeys - 1) / kSegmentKeys;
        task.cost = task.block.tokens * (end - first);
        blocks.push_back(task);
      }
    }
  }
  // Too few row blocks to share out evenly: give each segment its own task and merge afterwards.
  const int64_t threads = std::max<int64_t>(1, pool.num_threads());
  const bool split = threads > 1 && static_cast<int64_t>(blocks.size()) < 4 * threads;
  std::vector<Task> tasks;
  std::vector<Task> merges;
  int64_t shared_floats = 0;
  for (const Task& task : blocks) {
    if (!split || task.end_segment - task.first_segment < 2) {
      tasks.push_back(task);
      continue;
    }
    merges.push_back(task);
    merges.back().partial = shared_floats;
    for (int64_t segment = task.first_segment; segment < task.end_segment; ++segment) {
      Task part = task;
      part.first_segment = segment;
      part.end_segment = segment + 1;
      part.partial = shared_floats;
      part.cost = task.block.tokens * kSegmentKeys;
      shared_floats += RoundUp(Partial::Floats(task.block.tokens * call.group, call.dim_padded), 16);
      tasks.push_back(part);
    }
  }
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.cost > b.cost; });
  static thread_local Scratch shared_scratch, total_scratch;
  float* shared = shared_scratch.Get(std::max<int64_t>(shared_floats, 1));
  ParallelFor(pool, tasks.size(), [&](int64_t i) { RunTask(call, tasks[i], shared); });
  FlushSubnormals flush;
  for (const Task& merge : merges) {
    const int64_t rows = merge.block.tokens * call.group;
    const int64_t floats = RoundUp(Partial::Floats(rows, call.dim_padded), 16);
    Partial total(total_scratch.Get(floats), rows, call.dim_padded);
    StartTotal(call, merge.block, total);
    float* from = shared + merge.partial;
    for (int64_t segment = merge.first_segment; segment < merge.end_segment; ++segment, from += floats) {
      Partial partial(from, rows, call.dim_padded);
      for (int64_t r = 0; r < rows; ++r) total.Merge(r, partial, r);
    }
    WriteOutput(call, merge.block, total);
  }
}

ffi::Error PagedAttention(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> q, ffi::Buffer<ffi::F32> k,
                          ffi::Buffer<ffi::F32> v, ffi::Buffer<ffi::F32> cache, ffi::Buffer<ffi::S32> table,
                          ffi::Buffer<ffi::S32> lengths, ffi::Buffer<ffi::S32> starts, ffi::AnyBuffer slots,
                          ffi::Buffer<ffi::S32> num_seqs, ffi::Buffer<ffi::F32> slopes,
                          ffi::Buffer<ffi::F32> sinks, ffi::ResultBuffer<ffi::F32> out,
                          ffi::ResultBuffer<ffi::F32> new_cache, float scale, int32_t window, float soft_cap,
                          bool causal) {
  AttentionCall call;
  call.tokens = q.dimensions()[0];
  call.q_heads = q.dimensions()[1];
  call.dim = q.dimensions()[2];
  call.num_blocks = cache.dimensions()[0];
  call.kv_heads = cache.dimensions()[2];
  call.block_size = cache.dimensions()[3];
  call.group = call.q_heads / call.kv_heads;
  call.dim_padded = RoundUp(call.dim, kLanes);
  call.table_width = table.dimensions()[1];
  call.q = q.typed_data();
  call.out = out->typed_data();
  call.cache = new_cache->typed_data();
  call.table = table.typed_data();
  call.slopes = slopes.element_count() > 0 ? slopes.typed_data() : nullptr;
  call.sinks = sinks.element_count() > 0 ? sinks.typed_data() : nullptr;
  call.scale = scale;
  call.soft_cap = soft_cap;
  call.window = window;
  call.causal = causal;
  const int64_t sequences = num_seqs.typed_data()[0];
  if (sequences < 0 || sequences > lengths.dimensions()[0]) {
    return ffi::Error::InvalidArgument(Text("num_seqs", 0, "is", sequences,
                                            "; it must be from 0 to the rows of seq_lens: ",
                                            lengths.dimensions()[0]));
  }
  const int32_t* begin = starts.typed_data();
  if (ffi::Error error = CheckSequences(call, sequences, lengths.typed_data(), begin); error.failure()) {
    return error;
  }
  // XLA gives both the same memory; were it not so, the cache would lose its old content.
  if (cache.typed_data() != call.cache) std::copy_n(cache.typed_data(), cache.element_count(), call.cache);
  ffi::Error error = slots.element_type() == ffi::S64
                         ? WriteCache(pool, call, k.typed_data(), v.typed_data(),
                                      static_cast<const int64_t*>(slots.untyped_data()))
                         : WriteCache(pool, call, k.typed_data(), v.typed_data(),
                                      static_cast<const int32_t*>(slots.untyped_data()));
  if (error.failure()) return error;
  const int64_t row = call.q_heads * call.dim;
  const int64_t first = sequences > 0 ? begin[0] : 0, end = sequences > 0 ? begin[sequences] : 0;
  std::fill_n(call.out, first * row, 0.0f);
  std::fill_n(call.out + end * row, (call.tokens - end) * row, 0.0f);
  Attend(pool, call, sequences, lengths.typed_data(), begin);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(SystolicPagedAttention, PagedAttention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()   // q
                                  .Arg<ffi::Buffer<ffi::F32>>()   // k
                                  .Arg<ffi::Buffer<ffi::F32>>()   // v
                                  .Arg<ffi::Buffer<ffi::F32>>()   // cache
                                  .Arg<ffi::Buffer<ffi::S32>>()   // block table
                                  .Arg<ffi::Buffer<ffi::S32>>()   // sequence lengths
                                  .Arg<ffi::Buffer<ffi::S32>>()   // query starts
                                  .Arg<ffi::AnyBuffer>()          // slots, 32 or 64 bit
                                  .Arg<ffi::Buffer<ffi::S32>>()   // number of live sequences
                                  .Arg<ffi::Buffer<ffi::F32>>()   // ALiBi slopes or empty
                                  .Arg<ffi::Buffer<ffi::F32>>()   // sinks or empty
                                  .Ret<ffi::Buffer<ffi::F32>>()   // out
                                  .Ret<ffi::Buffer<ffi::F32>>()   // the updated cache
                                  .Attr<float>("scale")
                                  .Attr<int32_t>("sliding_window")
                                  .Attr<float>("soft_cap")
                                  .Attr<bool>("causal"));

}  // namespace systolic
