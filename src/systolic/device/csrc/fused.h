// Fused mode: operators are recorded, and run as one program when a value is needed.
//
// A recorded operator's results have their sizes and specs at once, so keys and views work as ever; only
// their arrays are missing. A cell then holds the number of the value it waits for instead of an array.
#pragma once
#include "program.h"

namespace systolic {

bool fused();             // of the whole process: backward passes run on threads of their own
void set_fused(bool on);  // needs the GIL

// Record a call in place of running it; results as in run_entry. Needs the GIL.
void record(const Entry& entry, Gather& call, std::vector<at::Tensor>& created);

// Run what is recorded for a device. Needs the GIL.
void flush(c10::DeviceIndex device);

}  // namespace systolic
