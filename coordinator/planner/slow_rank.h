// When a rank is called slow, in the words of every view of a job.
#pragma once

namespace sparsebalance::planner {

// Measured over predicted time from which on a rank is named. Learned factors have the noise taken
// out, so that what is left of it is real.
inline constexpr double kSlowRankTimeFactor = 1.05;

}  // namespace sparsebalance::planner
