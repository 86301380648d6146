// The device in torch.profiler: a Kineto activity profiler for PrivateUse1.
//
// While a session records, every launch is waited for, so that its duration is known exactly. Host and
// device therefore do not overlap in the trace; an XPlane trace (torch.tpu.profiler) shows the overlap.
#ifndef USE_KINETO
#define USE_KINETO
#endif
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include "profiler.h"

#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <libkineto.h>
#include <output_base.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <vector>

namespace systolic::profiler {
namespace {

using libkineto::ActivityType;

struct Work {
  Kind kind;
  std::string name;
  int device;
  int64_t started, issued, finished;
  size_t bytes;
  int64_t correlation;  // of the PyTorch operator that caused it, 0 if none
  int32_t thread;
};

std::atomic<bool> recording{false};
std::mutex mutex;
std::vector<Work>& works() {
  static auto* all = new std::vector<Work>;
  return *all;
}
// Correlation ids of the PyTorch operators that run on this thread, innermost last.
thread_local std::vector<uint64_t> operators;

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    std::lock_guard<std::mutex> lock(mutex);
    works().clear();
    recording = true;
    status_ = libkineto::TraceStatus::RECORDING;
  }

  void stop() override {
    std::lock_guard<std::mutex> lock(mutex);
    recording = false;
    collected_.swap(works());
    works().clear();
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override { return {}; }

  void processTrace(libkineto::ActivityLogger& logger) override { process(logger, nullptr, 0, INT64_MAX); }

  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t start,
                    int64_t end) override {
    process(logger, linked, start, end);
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::make_unique<libkineto::DeviceInfo>(
        libkineto::DeviceInfo{0, libkineto::kExceedMaxPid, "tpu", "tpu"});
  }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> infos;
    std::set<int> devices;
    for (const auto& work : collected_) devices.insert(work.device);
    for (int device : devices) infos.push_back({0, 0, device, "programs of tpu:" + std::to_string(device)});
    return infos;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void pushCorrelationId(uint64_t id) override { operators.push_back(id); }
  void popCorrelationId() override {
    if (!operators.empty()) operators.pop_back();
  }

 private:
  void process(libkineto::ActivityLogger& logger, const libkineto::getLinkedActivityCallback& linked, int64_t start,
               int64_t end) {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(start, end, "tpu");
    buffer_->gpuOpCount = static_cast<int>(collected_.size());
    int32_t number = 0;
    for (const auto& work : collected_) {
      if (work.started < start || work.finished > end) continue;
      ++number;
      const auto* cause = linked && work.correlation ? linked(static_cast<int32_t>(work.correlation)) : nullptr;
      if (work.kind == Kind::Program) add_launch(logger, work, number, cause);
      const auto type = work.kind == Kind::Program ? ActivityType::CONCURRENT_KERNEL : ActivityType::GPU_MEMCPY;
      auto& activity = add(work, type, work.name, work.started, work.finished, number, cause);
      activity.device = work.device;
      activity.addMetadata("device", work.device);
      activity.addMetadata("stream", 0);
      activity.addMetadata("bytes", work.bytes);
      activity.flow.start = 0;
      activity.log(logger);
    }
  }

  // The host's part of a launch, where the arrow to the device's part starts.
  void add_launch(libkineto::ActivityLogger& logger, const Work& work, int32_t number,
                  const libkineto::ITraceActivity* cause) {
    auto& activity =
        add(work, ActivityType::PRIVATEUSE1_RUNTIME, "tpuLaunch", work.started, work.issued, number, cause);
    activity.device = static_cast<int32_t>(getpid());
    activity.resource = work.thread;
    activity.flow.start = 1;
    activity.log(logger);
  }

  libkineto::GenericTraceActivity& add(const Work& work, ActivityType type, const std::string& name, int64_t started,
                                       int64_t finished, int32_t number, const libkineto::ITraceActivity* cause) {
    buffer_->emplace_activity(buffer_->span, type, name);
    auto& activity = *buffer_->activities.back();
    activity.startTime = started;
    activity.endTime = finished;
    activity.id = number;
    activity.threadId = work.thread;
    activity.linked = cause;
    activity.flow.id = static_cast<uint32_t>(number);
    activity.flow.type = libkineto::kLinkAsyncCpuGpu;
    activity.addMetadata("correlation", number);
    if (cause) activity.addMetadata("External id", cause->correlationId());
    return activity;
  }

  std::vector<Work> collected_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return activities_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config&) override {
    // A profile of the CPU alone asks for runtime events too, but for no work of the device.
    if (!wanted.count(ActivityType::CONCURRENT_KERNEL)) return nullptr;
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t,
                                                                 const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  const std::string name_ = "tpu";
  const std::set<ActivityType> activities_{ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                           ActivityType::PRIVATEUSE1_RUNTIME};
};

REGISTER_PRIVATEUSE1_PROFILER(Profiler);

int32_t thread_id() {
  thread_local const auto id = static_cast<int32_t>(syscall(SYS_gettid));
  return id;
}

}  // namespace

bool active() noexcept { return recording.load(std::memory_order_relaxed); }

int64_t now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void record(Kind kind, std::string name, int device, int64_t started, int64_t issued, int64_t finished, size_t bytes) {
  const auto correlation = operators.empty() ? 0 : static_cast<int64_t>(operators.back());
  std::lock_guard<std::mutex> lock(mutex);
  if (!recording) return;
  works().push_back({kind, std::move(name), device, started, issued, finished, bytes, correlation, thread_id()});
}

}  // namespace systolic::profiler
