// Sums over scored tokens, and what follows from them.
#pragma once

#include <cstdint>

namespace sparsebalance::eval {

// Standard errors are over sequences, not over tokens: what a model gets wrong in a sequence comes
// in groups, so tokens of one sequence are not independent.
class Tally {
 public:
  // What one sequence adds; nothing where `tokens` is 0.
  void AddSequence(int64_t tokens, double loss_sum, int64_t correct);

  int64_t sequences() const { return sequences_; }
  int64_t tokens() const { return tokens_; }

  // All are 0 without tokens; the standard errors also with fewer than two sequences.
  double mean_loss() const;  // nats a token
  double mean_loss_error() const;
  double perplexity() const;  // exp(mean loss)
  double perplexity_error() const;
  double accuracy() const;  // in [0, 1]
  double accuracy_error() const;

 private:
  // Of a ratio of sums over sequences (Cochran, Sampling Techniques, 6.4).
  double RatioError(double sum, double sum_squares, double sum_products) const;

  int64_t sequences_ = 0;
  int64_t tokens_ = 0;
  double tokens_squared_ = 0;
  double loss_ = 0, loss_squared_ = 0, loss_tokens_ = 0;
  double correct_ = 0, correct_squared_ = 0, correct_tokens_ = 0;
};

}  // namespace sparsebalance::eval
