// Non-negative least squares for a handful of unknowns.
#pragma once

#include <array>
#include <cstddef>

namespace sparsebalance::planner {

// Sums over weighted rows x_i of a least squares problem with kUnknowns columns.
struct NormalEquations {
  static constexpr std::size_t kUnknowns = 4;
  using Vector = std::array<double, kUnknowns>;

  std::array<Vector, kUnknowns> gram{};  // sum w * x_i * x_i^T
  Vector right{};                        // sum w * x_i * y_i

  void Add(const Vector& x, double y, double weight);
  void Scale(double factor);
};

// The c >= 0 that minimizes |Xc - y|. With so few unknowns every set of active ones is tried, so
// the result is exact; of sets that are equally good the smallest wins, so that a coefficient that
// the rows say nothing about is 0.
NormalEquations::Vector SolveNonNegative(const NormalEquations& equations);

}  // namespace sparsebalance::planner
