#include "coordinator/planner/nnls.h"

#include <bit>
#include <cmath>
#include <vector>

namespace sparsebalance::planner {
namespace {

constexpr std::size_t kUnknowns = NormalEquations::kUnknowns;
// A pivot below this share of its diagonal is a column that others explain already.
constexpr double kPivot = 1e-10;
// A larger set must be better by this share of the right side to be preferred.
constexpr double kWorthwhile = 1e-12;

// Solves for the unknowns in `set` by Cholesky of the scaled matrix. False where it is singular.
bool SolveSubset(const NormalEquations& eq, unsigned set, NormalEquations::Vector& c) {
  std::vector<std::size_t> index;
  for (std::size_t j = 0; j < kUnknowns; ++j) {
    if (set >> j & 1U) index.push_back(j);
  }
  const std::size_t m = index.size();
  std::vector<double> scale(m);
  for (std::size_t a = 0; a < m; ++a) {
    if (!(eq.gram[index[a]][index[a]] > 0)) return false;
    scale[a] = 1 / std::sqrt(eq.gram[index[a]][index[a]]);
  }
  std::array<std::array<double, kUnknowns>, kUnknowns> lower{};
  std::array<double, kUnknowns> z{};
  for (std::size_t a = 0; a < m; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      double sum = eq.gram[index[a]][index[b]] * scale[a] * scale[b];
      for (std::size_t k = 0; k < b; ++k) sum -= lower[a][k] * lower[b][k];
      if (a == b) {
        if (sum < kPivot) return false;
        lower[a][a] = std::sqrt(sum);
      } else {
        lower[a][b] = sum / lower[b][b];
      }
    }
    double sum = eq.right[index[a]] * scale[a];
    for (std::size_t k = 0; k < a; ++k) sum -= lower[a][k] * z[k];
    z[a] = sum / lower[a][a];
  }
  c.fill(0);
  for (std::size_t a = m; a-- > 0;) {
    double sum = z[a];
    for (std::size_t k = a + 1; k < m; ++k) sum -= lower[k][a] * z[k];
    z[a] = sum / lower[a][a];
    c[index[a]] = z[a] * scale[a];
  }
  return true;
}

double Objective(const NormalEquations& eq, const NormalEquations::Vector& c) {
  double value = 0;
  for (std::size_t a = 0; a < kUnknowns; ++a) {
    for (std::size_t b = 0; b < kUnknowns; ++b) value += c[a] * eq.gram[a][b] * c[b];
    value -= 2 * c[a] * eq.right[a];
  }
  return value;
}

}  // namespace

void NormalEquations::Add(const Vector& x, double y, double weight) {
  for (std::size_t a = 0; a < kUnknowns; ++a) {
    for (std::size_t b = 0; b < kUnknowns; ++b) gram[a][b] += weight * x[a] * x[b];
    right[a] += weight * x[a] * y;
  }
}

void NormalEquations::Scale(double factor) {
  for (Vector& row : gram) {
    for (double& value : row) value *= factor;
  }
  for (double& value : right) value *= factor;
}

NormalEquations::Vector SolveNonNegative(const NormalEquations& equations) {
  NormalEquations::Vector best{};
  double best_value = 0;  // of all zeros
  for (unsigned size = 1; size <= kUnknowns; ++size) {
    for (unsigned set = 1; set < 1U << kUnknowns; ++set) {
      if (std::popcount(set) != static_cast<int>(size)) continue;
      NormalEquations::Vector c{};
      if (!SolveSubset(equations, set, c)) continue;
      bool allowed = true;
      for (const double value : c) allowed = allowed && value >= 0;
      const double value = Objective(equations, c);
      if (allowed && value < best_value - kWorthwhile * std::fabs(best_value)) {
        best = c;
        best_value = value;
      }
    }
  }
  return best;
}

}  // namespace sparsebalance::planner
