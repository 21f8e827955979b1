#include "worker/model/schedule.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace sparsebalance::model {

absl::Status LearningRateSchedule::Validate() const {
  if (!std::isfinite(peak) || !(minimum >= 0) || !(minimum <= peak)) {
    return absl::InvalidArgumentError(absl::StrCat("learning rate: peak ", peak, " and minimum ",
                                                   minimum, "; needs 0 <= minimum <= peak"));
  }
  if (total_steps < 1 || warmup_steps < 0 || warmup_steps > total_steps) {
    return absl::InvalidArgumentError(
        absl::StrCat("learning rate: ", warmup_steps, " warm-up steps of ", total_steps,
                     "; needs 0 <= warm-up <= total and a total of at least 1"));
  }
  return absl::OkStatus();
}

double LearningRate(const LearningRateSchedule& schedule, int64_t step) {
  const auto& [peak, minimum, warmup_steps, total_steps] = schedule;
  if (step < warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  if (step >= total_steps) return minimum;
  const double progress =
      static_cast<double>(step - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  constexpr double kPi = 3.14159265358979323846;
  return minimum + (peak - minimum) * 0.5 * (1.0 + std::cos(kPi * progress));
}

}  // namespace sparsebalance::model
