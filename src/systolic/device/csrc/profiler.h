// What torch.profiler records of the device: program launches and host copies.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace systolic::profiler {

enum class Kind : uint8_t { Program, Copy };

bool active() noexcept;  // a torch.profiler session with ProfilerActivity.PrivateUse1 is recording
int64_t now() noexcept;  // nanoseconds since the epoch, the clock of the trace

// One finished piece of device work. `issued` is when the host had handed it over (== finished for copies).
void record(Kind kind, std::string name, int device, int64_t started, int64_t issued, int64_t finished, size_t bytes);

}  // namespace systolic::profiler
