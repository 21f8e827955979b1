#include "kernels/emulation/fiber.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace sparsebalance::kernels::emulation {
namespace {

struct Job {
  Fiber* fiber;
  std::string name;
  std::vector<std::string>* log;
};

void SaySteps(void* argument) {
  const Job& job = *static_cast<Job*>(argument);
  for (int step = 0; step < 3; ++step) {
    job.log->push_back(job.name + std::to_string(step));
    job.fiber->Suspend();
  }
}

TEST(FiberTest, FibersGoOnWhereTheyStopped) {
  std::vector<std::string> log;
  Fiber a(0);
  Fiber b(1);
  Job job_a{&a, "a", &log};
  Job job_b{&b, "b", &log};
  a.Start(&SaySteps, &job_a);
  b.Start(&SaySteps, &job_b);
  EXPECT_FALSE(a.Resume());
  EXPECT_FALSE(a.Resume());
  EXPECT_FALSE(b.Resume());
  EXPECT_FALSE(a.Resume());
  EXPECT_FALSE(b.Resume());
  EXPECT_TRUE(a.Resume());
  EXPECT_FALSE(b.Resume());
  EXPECT_TRUE(b.Resume());
  EXPECT_EQ(log, (std::vector<std::string>{"a0", "a1", "b0", "a2", "b1", "b2"}));
}

TEST(FiberTest, AFiberRunsOneBodyAfterAnother) {
  Fiber fiber(0);
  int runs = 0;
  for (int i = 0; i < 1000; ++i) {
    fiber.Start([](void* count) { ++*static_cast<int*>(count); }, &runs);
    EXPECT_TRUE(fiber.Resume());
  }
  EXPECT_EQ(runs, 1000);
}

void CatchOwn(void* argument) {
  Job& job = *static_cast<Job*>(argument);
  try {
    job.fiber->Suspend();
    throw 5;
  } catch (int value) {
    job.name += std::to_string(value);
  }
}

TEST(FiberTest, ExceptionsUnwindTheFibersOwnStack) {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Job> jobs(40);
  for (int i = 0; i < 40; ++i) {
    fibers.push_back(std::make_unique<Fiber>(i));
    jobs[i] = {fibers[i].get(), "caught ", nullptr};
    fibers[i]->Start(&CatchOwn, &jobs[i]);
    EXPECT_FALSE(fibers[i]->Resume());
  }
  for (int i = 39; i >= 0; --i) {
    EXPECT_TRUE(fibers[i]->Resume());
    EXPECT_EQ(jobs[i].name, "caught 5");
  }
}

struct Ring {
  std::vector<std::unique_ptr<Fiber>>* fibers;
  size_t place;
  std::vector<size_t>* log;
};

void HandOver(void* argument) {
  const Ring& ring = *static_cast<Ring*>(argument);
  for (int round = 0; round < 2; ++round) {
    ring.log->push_back(ring.place);
    (*ring.fibers)[ring.place]->SuspendTo(*(*ring.fibers)[(ring.place + 1) % 3]);
  }
}

TEST(FiberTest, FibersHandOverToEachOtherAndReturnToTheFirstResumer) {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<size_t> log;
  std::vector<Ring> rings;
  rings.reserve(3);
  for (size_t i = 0; i < 3; ++i) {
    fibers.push_back(std::make_unique<Fiber>(static_cast<int>(i)));
    rings.push_back({&fibers, i, &log});
    fibers[i]->Start(&HandOver, &rings[i]);
  }
  // The first that returns, in the third round, comes back here.
  EXPECT_TRUE(fibers[0]->Resume());
  EXPECT_EQ(log, (std::vector<size_t>{0, 1, 2, 0, 1, 2}));
  EXPECT_TRUE(fibers[1]->Resume());
  EXPECT_TRUE(fibers[2]->Resume());
}

TEST(FiberTest, AFiberThatNeverRanEndsQuietly) {
  const Fiber fiber(3);
  Fiber started(4);
  started.Start([](void*) {}, nullptr);
}

}  // namespace
}  // namespace sparsebalance::kernels::emulation
