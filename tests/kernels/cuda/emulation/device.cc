// How it works: threads that never wait run one after the other on one stack; a waiting thread
// keeps its own stack. _setjmp and _longjmp change stacks without a system call.
#include "device.h"

#include <setjmp.h>
#include <ucontext.h>

#include <memory>
#include <vector>

namespace xffl::kernels::emulation {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr int kMaxThreads = 1024;

struct Stack {
  std::unique_ptr<char[]> bytes;
  ucontext_t start;
  jmp_buf waiting;
  int thread = 0;  // the thread that waits on this stack
  bool done = false;
};

struct Machine {
  Place place;
  bool falling = false;
  const std::function<void()>* body = nullptr;
  jmp_buf scheduler;
  std::vector<Stack> stacks = std::vector<Stack>(kMaxThreads);
  size_t current = 0;   // stack
  int num_started = 0;  // threads of this block
  std::vector<uint64_t> slots = std::vector<uint64_t>(kMaxThreads);
};

Machine& machine() {
  static Machine one;
  return one;
}

void run_threads() {
  Machine& m = machine();
  while (m.num_started < m.place.num_threads) {
    const int index = m.num_started++;
    m.place.thread = m.falling ? m.place.num_threads - 1 - index : index;
    (*m.body)();
  }
  m.stacks[m.current].done = true;
  _longjmp(m.scheduler, 1);
}

// Starts new threads on a stack until one of them waits.
void start(size_t index) {
  Machine& m = machine();
  Stack& stack = m.stacks[index];
  if (!stack.bytes) {
    stack.bytes.reset(new char[kStackBytes]);
    if (getcontext(&stack.start) != 0) fail("getcontext failed");
    stack.start.uc_stack.ss_sp = stack.bytes.get();
    stack.start.uc_stack.ss_size = kStackBytes;
  }
  makecontext(&stack.start, run_threads, 0);
  stack.done = false;
  m.current = index;
  if (_setjmp(m.scheduler) == 0) setcontext(&stack.start);
}

void resume(size_t index) {
  Machine& m = machine();
  m.current = index;
  m.place.thread = m.stacks[index].thread;
  if (_setjmp(m.scheduler) == 0) _longjmp(m.stacks[index].waiting, 1);
}

void run_block() {
  Machine& m = machine();
  m.num_started = 0;
  size_t count = 0;
  while (m.num_started < m.place.num_threads) start(count++);
  // Threads that never waited left at most one stack, the last.
  const bool one_stack = count == 1 && m.stacks[0].done;
  if (!one_stack && (m.stacks[count - 1].done || count != static_cast<size_t>(m.place.num_threads)))
    fail("some threads of a block wait for others that have ended");
  for (size_t num_done = one_stack ? count : 0; num_done < count;) {
    num_done = 0;
    for (size_t i = 0; i < count; ++i) {
      resume(i);
      num_done += m.stacks[i].done ? 1 : 0;
    }
    if (num_done != 0 && num_done != count)
      fail("some threads of a block wait for others that have ended");
  }
}

}  // namespace

Place& here() { return machine().place; }
uint64_t& slot(int thread) { return machine().slots[static_cast<size_t>(thread)]; }
void set_falling(bool falling) { machine().falling = falling; }

void wait_for_block() {
  Machine& m = machine();
  Stack& stack = m.stacks[m.current];
  stack.thread = m.place.thread;
  if (_setjmp(stack.waiting) == 0) _longjmp(m.scheduler, 1);
}

void run(int64_t blocks, int threads, const std::function<void()>& body) {
  Machine& m = machine();
  if (threads < 1 || threads > kMaxThreads || blocks < 1) fail("a grid that no GPU takes");
  m.body = &body;
  for (int64_t block = 0; block < blocks; ++block) {
    m.place = {0, threads, block, blocks};
    run_block();
  }
}

}  // namespace xffl::kernels::emulation
