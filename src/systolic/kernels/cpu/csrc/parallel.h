// Loops on XLA's own intra-op thread pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "vec.h"
#include "xla/ffi/api/ffi.h"

namespace systolic {

// One loop. Helpers may start after the loop has ended: they then find nothing to claim and touch
// only this object, which they keep alive.
struct Loop {
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> done{0};
  int64_t count = 0;
  void (*body)(void*, int64_t) = nullptr;
  void* context = nullptr;

  void Work() {
    FlushSubnormals flush;
    int64_t finished = 0;
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count; ++finished) body(context, i);
    if (finished > 0 && done.fetch_add(finished, std::memory_order_acq_rel) + finished == count) {
      done.notify_all();
    }
  }
};

// Calls body(i) once for each i in [0, count), in any order, on the pool's threads and on this one.
//
// The caller claims work like everyone else and then waits only for work that a running thread has
// already claimed, so the loop ends even if the pool never runs a helper.
template <typename Body>
void ParallelFor(xla::ffi::ThreadPool& pool, int64_t count, Body&& body) {
  if (count <= 0) return;
  int64_t helpers = std::min<int64_t>(pool.num_threads(), count) - 1;
  if (helpers <= 0) {
    FlushSubnormals flush;
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  auto loop = std::make_shared<Loop>();
  loop->count = count;
  loop->context = const_cast<void*>(static_cast<const void*>(&body));
  loop->body = [](void* context, int64_t i) { (*static_cast<std::remove_reference_t<Body>*>(context))(i); };
  for (int64_t h = 0; h < helpers; ++h) pool.Schedule([loop] { loop->Work(); });
  loop->Work();
  for (int spin = 0; spin < 500; ++spin) {
    if (loop->done.load(std::memory_order_acquire) == count) return;
#if defined(__SSE__)
    _mm_pause();
#endif
  }
  for (int64_t seen; (seen = loop->done.load(std::memory_order_acquire)) != count;) loop->done.wait(seen);
}

}  // namespace systolic
