// Blocks that operators may read, as allocators hand them out and take them back.
#pragma once

#include <Python.h>

#include <cstdint>

namespace memprof {

// Which allocator's blocks: -1 the CPU's, else the number of a CUDA device.
constexpr int kCpu = -1;

// An allocation of a device's was written down. `in_use` are the device's bytes, 0: not known. Any thread.
void block_came(int device, uint64_t address, int64_t size, int64_t in_use);
// And was given back.
void block_went(int device, uint64_t address);

extern PyMethodDef reads_methods[];

// A forked child follows nothing.
void reads_in_child();

} // namespace memprof
