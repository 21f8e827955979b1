#include "worker/eval/tally.h"

#include <algorithm>
#include <cmath>

namespace sparsebalance::eval {

void Tally::AddSequence(int64_t tokens, double loss_sum, int64_t correct) {
  if (tokens == 0) return;
  const auto n = static_cast<double>(tokens);
  const auto c = static_cast<double>(correct);
  ++sequences_;
  tokens_ += tokens;
  tokens_squared_ += n * n;
  loss_ += loss_sum;
  loss_squared_ += loss_sum * loss_sum;
  loss_tokens_ += loss_sum * n;
  correct_ += c;
  correct_squared_ += c * c;
  correct_tokens_ += c * n;
}

double Tally::RatioError(double sum, double sum_squares, double sum_products) const {
  if (sequences_ < 2) return 0;
  const auto tokens = static_cast<double>(tokens_);
  const auto count = static_cast<double>(sequences_);
  const double ratio = sum / tokens;
  const double residuals = sum_squares - 2 * ratio * sum_products + ratio * ratio * tokens_squared_;
  return std::sqrt(std::max(residuals, 0.0) * count / (count - 1)) / tokens;
}

double Tally::mean_loss() const { return tokens_ > 0 ? loss_ / static_cast<double>(tokens_) : 0; }
double Tally::mean_loss_error() const { return RatioError(loss_, loss_squared_, loss_tokens_); }
double Tally::perplexity() const { return tokens_ > 0 ? std::exp(mean_loss()) : 0; }
double Tally::perplexity_error() const { return perplexity() * mean_loss_error(); }
double Tally::accuracy() const { return tokens_ > 0 ? correct_ / static_cast<double>(tokens_) : 0; }
double Tally::accuracy_error() const {
  return RatioError(correct_, correct_squared_, correct_tokens_);
}

}  // namespace sparsebalance::eval
