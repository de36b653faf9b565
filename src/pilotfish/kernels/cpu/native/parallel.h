// A pool of threads that sleep when there is nothing to do.
#pragma once

#include <functional>

namespace pilotfish {

// Threads that work is split over: PILOTFISH_THREADS, else the processors this process may run on.
int thread_count();

// Calls body(begin, end) over [0, n), split into at most thread_count() pieces of at least `grain`. Returns when all is
// done. A second caller that finds the pool busy does its work alone, so two streams never wait for each other.
void parallel_for(int n, int grain, const std::function<void(int, int)>& body);

}  // namespace pilotfish
