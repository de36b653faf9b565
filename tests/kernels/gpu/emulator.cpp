// Runs a kernel's threads as fibers, a threadgroup at a time. simd_sum parks a lane until its whole simdgroup has called
// it; lanes that have returned no longer count. A simdgroup of which only some lanes arrive is reported, not hung.
#include <ucontext.h>

#include <string>
#include <vector>

#include "metal_stdlib.h"

uint3 thread_position_in_grid, threadgroup_position_in_grid, thread_position_in_threadgroup;
uint thread_index_in_simdgroup, simdgroup_index_in_threadgroup;

void kernel_body(void** buffers);

namespace {

constexpr int LANES = 32, STACK = 64 << 10;

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(STACK);
  uint3 in_grid, in_group;
  bool done, waiting;
  float value;
};

ucontext_t scheduler;
std::vector<Fiber> fibers;
Fiber* current;
void** arguments;
std::string failure;

void enter() {
  kernel_body(arguments);
  current->done = true;
}

void resume(Fiber& f, int index) {
  current = &f;
  thread_position_in_grid = f.in_grid;
  thread_position_in_threadgroup = f.in_group;
  thread_index_in_simdgroup = index % LANES;
  simdgroup_index_in_threadgroup = index / LANES;
  swapcontext(&scheduler, &f.context);
}

// One simdgroup to its end: all lanes run to the next collective, then all get its result.
void run_simdgroup(int first, int count) {
  while (true) {
    int waiting = 0, done = 0;
    for (int i = first; i < first + count; ++i) {
      if (!fibers[i].done) resume(fibers[i], i);
      waiting += fibers[i].waiting, done += fibers[i].done;
    }
    if (done == count) return;
    if (waiting != count) {
      failure = "simd_sum was called by " + std::to_string(waiting) + " of " + std::to_string(count) + " lanes";
      return;
    }
    float total = 0;  // the order of the hardware is not known; any fixed one shows what rows may depend on
    for (int i = first; i < first + count; ++i) total += fibers[i].value;
    for (int i = first; i < first + count; ++i) fibers[i].value = total, fibers[i].waiting = false;
  }
}

}  // namespace

float simd_sum(float x) {
  Fiber* self = current;
  self->value = x, self->waiting = true;
  swapcontext(&self->context, &scheduler);
  return self->value;
}

extern "C" const char* run(void** buffers, const uint* grid, const uint* group) {
  arguments = buffers;
  failure.clear();
  const uint size = group[0] * group[1] * group[2];
  fibers.resize(size);
  for (uint gz = 0; gz < grid[2]; gz += group[2])
    for (uint gy = 0; gy < grid[1]; gy += group[1])
      for (uint gx = 0; gx < grid[0]; gx += group[0]) {
        threadgroup_position_in_grid = {gx / group[0], gy / group[1], gz / group[2]};
        std::vector<int> inside;
        for (uint i = 0; i < size; ++i) {
          Fiber& f = fibers[i];
          f.in_group = {i % group[0], i / group[0] % group[1], i / (group[0] * group[1])};
          f.in_grid = {gx + f.in_group.x, gy + f.in_group.y, gz + f.in_group.z};
          f.waiting = false;
          f.done = f.in_grid.x >= grid[0] || f.in_grid.y >= grid[1] || f.in_grid.z >= grid[2];
          if (f.done) continue;
          getcontext(&f.context);
          f.context.uc_stack = {f.stack.data(), 0, f.stack.size()};
          f.context.uc_link = &scheduler;
          makecontext(&f.context, enter, 0);
        }
        for (uint first = 0; first < size && failure.empty(); first += LANES)
          run_simdgroup(first, min<uint>(LANES, size - first));
        if (!failure.empty()) return failure.c_str();
      }
  return nullptr;
}
