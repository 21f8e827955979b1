#include "coordinator/planner/latency_estimator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/byte_io.h"
#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/latency_fit.h"
#include "coordinator/planner/latency_model.h"
#include "coordinator/planner/schedule.h"

namespace sparsebalance::planner {
namespace {

// Steps behind a rank's speed, and those that are enough to tell of a change: their median has
// turned after half of them.
constexpr size_t kSpeedWindow = 15;
constexpr size_t kChangeWindow = 5;
// Scatter of a step's time that is assumed before there are samples, and the samples it is worth.
constexpr double kPriorScatter = 0.05;
constexpr double kPriorSamples = 4;
// Median absolute deviation to standard deviation, and standard error of a median over that of a
// mean: both of a normal distribution.
constexpr double kDeviationOfMad = 1.4826;
constexpr double kErrorOfMedian = 1.2533;
// Standard errors between the last steps and those before that tell of a change.
constexpr double kChangeErrors = 3;
// Standard errors up to which a rank's difference from the others is taken for noise.
constexpr double kNoiseErrors = 2;
constexpr size_t kConstantWindow = 15;
// Data lose this share of their weight with every report, spread over the ranks.
constexpr double kForgetting = 0.02;
// Weight of the starting model in micro-batches, at first and by how much it falls; the data's
// grows to the number of micro-batches in 1 / kForgetting steps.
constexpr double kPriorWeight = 8;
constexpr double kPriorFades = 1000;
// Samples this many times above or below what is expected tell of something else than the model.
constexpr double kOutlier = 3;
// Factors nearer to 1 are noise; a plan should not change for them.
constexpr double kSameSpeed = 0.02;
// Ranks by which the common speed is judged with every report.
constexpr uint32_t kSampledRanks = 64;
// Steps of which some ranks never reported are dropped beyond so many.
constexpr size_t kMaxPending = 8;
constexpr uint32_t kVersion = 2;

double Square(double x) { return x * x; }

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double Median(const std::deque<double>& values) {
  return Median(std::vector<double>(values.begin(), values.end()));
}

// The last few where they lie apart from those before by more than both scatter, else all.
std::vector<double> SinceChange(std::vector<double> ratios) {
  if (ratios.size() < 2 * kChangeWindow) {
    if (ratios.size() > kChangeWindow) ratios.erase(ratios.begin(), ratios.end() - kChangeWindow);
    return ratios;
  }
  const auto split = ratios.end() - kChangeWindow;
  const std::vector<double> before(ratios.begin(), split);
  std::vector<double> last(split, ratios.end());
  const double old_speed = Median(before);
  const double new_speed = Median(last);
  std::vector<double> deviations;
  for (const double ratio : before) deviations.push_back(std::fabs(ratio - old_speed));
  for (const double ratio : last) deviations.push_back(std::fabs(ratio - new_speed));
  const double error = kErrorOfMedian * kDeviationOfMad * Median(std::move(deviations)) *
                       std::sqrt(1.0 / static_cast<double>(before.size()) + 1.0 / kChangeWindow);
  return std::fabs(new_speed - old_speed) > kChangeErrors * error ? last : ratios;
}

void PushBounded(std::deque<double>& window, double value, size_t limit) {
  window.push_back(value);
  if (window.size() > limit) window.pop_front();
}

// Pairs of a sequence, mean over layers where budgets were reported by layer.
double RealizedPairs(const v1::SequenceTelemetry& s, uint64_t blocks) {
  const auto pairs = [&](uint32_t k) {
    return static_cast<double>(BlockPairs(static_cast<int64_t>(blocks), std::max<uint32_t>(1, k)));
  };
  if (s.realized_budget_blocks_size() == 0) return pairs(s.planned_budget_blocks());
  double sum = 0;
  for (const uint32_t k : s.realized_budget_blocks()) sum += pairs(k);
  return sum / s.realized_budget_blocks_size();
}

double Dot(const NormalEquations::Vector& a, const NormalEquations::Vector& b) {
  double sum = 0;
  for (size_t j = 0; j < a.size(); ++j) sum += a[j] * b[j];
  return sum;
}

bool UsableTime(double ms) { return std::isfinite(ms) && ms > 0; }

// Reports come over a network: what cannot be is not learned from.
bool Usable(const v1::RankTelemetry& telemetry, uint32_t block_tokens) {
  constexpr uint64_t kMaxBlocks = uint64_t{1} << 24;
  for (const v1::MicroBatchTelemetry& mb : telemetry.micro_batches()) {
    if (!(mb.forward_ms() >= 0 && mb.backward_ms() >= 0)) return false;
    if (!UsableTime(mb.forward_ms() + mb.backward_ms())) return false;
    for (const v1::SequenceTelemetry& s : mb.sequences()) {
      if (s.tokens() == 0 || BlocksOf(s.tokens(), block_tokens) > kMaxBlocks) return false;
    }
  }
  return true;
}

}  // namespace

LatencyEstimator::LatencyEstimator(EstimatorOptions options,
                                   const std::optional<v1::LatencyProfile>& profile)
    : options_(std::move(options)),
      from_profile_(profile.has_value()),
      start_(profile.has_value() ? profile->model() : DefaultLatencyModel()) {
  options_.block_tokens = std::max<uint32_t>(1, options_.block_tokens);
  shape_ = {start_.constant_ms(), start_.per_token_ms(), start_.per_pair_ms(),
            start_.router_ms_per_token_block()};
  start_shape_ = shape_;
  recent_.resize(WorldSize());
  min_tokens_ = start_.min_tokens();
  max_tokens_ = start_.max_tokens();
  min_budget_ = start_.min_budget_blocks();
  max_budget_ = start_.max_budget_blocks();
  // The starting model as micro-batches that it predicts, short to long, sparse to full.
  std::vector<Features> rows;
  for (uint64_t blocks = 1; blocks <= 256; blocks *= 4) {
    for (const uint64_t budget : {uint64_t{1}, (blocks + 3) / 4, blocks}) {
      const auto pairs = static_cast<double>(
          BlockPairs(static_cast<int64_t>(blocks), static_cast<int64_t>(budget)));
      rows.push_back(
          SequenceFeatures(blocks * options_.block_tokens, pairs, options_.block_tokens));
      rows.back()[0] = 1;
    }
  }
  for (const Features& row : rows) {
    const double ms = Modelled(row);
    if (ms > 0) prior_.Add(row, ms, kPriorWeight / static_cast<double>(rows.size()) / (ms * ms));
  }
}

uint32_t LatencyEstimator::WorldSize() const {
  const v1::Parallelism& p = options_.parallelism;
  return std::max<uint32_t>(1, p.data()) * std::max<uint32_t>(1, p.pipeline()) *
         std::max<uint32_t>(1, p.sequence());
}

double LatencyEstimator::Modelled(const Features& features) const { return Dot(shape_, features); }

std::vector<double> LatencyEstimator::RatiosOver(const Features& shape, uint32_t rank) const {
  std::vector<double> ratios;
  ratios.reserve(recent_[rank].size());
  for (const StepSample& s : recent_[rank]) {
    const double modelled = Dot(shape, s.features);
    if (modelled > 0) ratios.push_back(s.measured_ms / modelled);
  }
  return ratios;
}

double LatencyEstimator::SpeedOver(const Features& shape, uint32_t rank) const {
  const std::vector<double> ratios = RatiosOver(shape, rank);
  return ratios.empty() ? 0 : Median(SinceChange(ratios));
}

double LatencyEstimator::Scatter() const {
  std::vector<double> deviations;
  for (uint32_t r = 0; r < recent_.size(); ++r) {
    const std::vector<double> ratios = SinceChange(RatiosOver(shape_, r));
    if (ratios.size() < 2) continue;
    const double middle = Median(ratios);
    for (const double ratio : ratios) deviations.push_back(std::fabs(ratio / middle - 1));
  }
  const auto samples = static_cast<double>(deviations.size());
  const double seen = kDeviationOfMad * Median(std::move(deviations));
  return std::sqrt((kPriorSamples * Square(kPriorScatter) + samples * Square(seen)) /
                   (kPriorSamples + samples));
}

double LatencyEstimator::CommonSpeed() const {
  std::vector<double> speeds;
  speeds.reserve(recent_.size());
  for (uint32_t r = 0; r < recent_.size(); ++r) {
    const double speed = Speed(r);
    if (speed > 0) speeds.push_back(speed);
  }
  return speeds.empty() ? 1 : Median(std::move(speeds));
}

double LatencyEstimator::SampledSpeedOver(const Features& shape) const {
  // All of them, or from every n-th the next that has reported.
  const auto ranks = static_cast<uint32_t>(recent_.size());
  const uint32_t stride = (ranks + kSampledRanks - 1) / kSampledRanks;
  std::vector<double> speeds;
  for (uint32_t first = 0; first < ranks; first += stride) {
    const uint32_t end = std::min(ranks, first + stride);
    for (uint32_t r = first; r < end; ++r) {
      const double speed = SpeedOver(shape, r);
      if (!(speed > 0)) continue;
      speeds.push_back(speed);
      break;
    }
  }
  return speeds.empty() ? 1 : Median(std::move(speeds));
}

void LatencyEstimator::Observe(const v1::RankTelemetry& telemetry) {
  const uint32_t rank = telemetry.rank();
  if (rank >= recent_.size() || !Usable(telemetry, options_.block_tokens)) return;
  std::vector<Features> rows;
  std::vector<double> times;
  StepSample sample;
  double forward = 0;
  for (const v1::MicroBatchTelemetry& mb : telemetry.micro_batches()) {
    const double ms = mb.forward_ms() + mb.backward_ms();
    Features row{};
    for (const v1::SequenceTelemetry& s : mb.sequences()) {
      const uint64_t blocks = BlocksOf(s.tokens(), options_.block_tokens);
      const Features one =
          SequenceFeatures(s.tokens(), RealizedPairs(s, blocks), options_.block_tokens);
      for (size_t j = 1; j < row.size(); ++j) row[j] += one[j];
      const uint32_t budget =
          std::max<uint32_t>(1, std::min<uint64_t>(s.planned_budget_blocks(), blocks));
      min_tokens_ = min_tokens_ == 0 ? s.tokens() : std::min<uint64_t>(min_tokens_, s.tokens());
      max_tokens_ = std::max<uint64_t>(max_tokens_, s.tokens());
      min_budget_ = min_budget_ == 0 ? budget : std::min(min_budget_, budget);
      max_budget_ = std::max(max_budget_, budget);
    }
    // A zero-weight micro-batch runs one token.
    if (mb.sequences().empty()) row = SequenceFeatures(1, 1, options_.block_tokens);
    row[0] = 1;
    for (size_t j = 0; j < row.size(); ++j) sample.features[j] += row[j];
    sample.measured_ms += ms;
    forward += mb.forward_ms();
    rows.push_back(row);
    times.push_back(ms);
  }
  if (!rows.empty()) {
    factors_.clear();
    recent_[rank].push_back(sample);
    if (recent_[rank].size() > kSpeedWindow) recent_[rank].pop_front();
    PushBounded(forward_shares_, forward / sample.measured_ms, kConstantWindow * WorldSize());
    Learn(rank, rows, times);
    ++reports_;
  }
  if (!UsableTime(telemetry.step_ms())) return;
  PendingStep& step = pending_[telemetry.step()];
  step[rank] = {std::move(rows), telemetry.step_ms()};
  if (step.size() == WorldSize()) {
    FinishStep(step);
    pending_.erase(telemetry.step());
  }
  while (pending_.size() > kMaxPending) pending_.erase(pending_.begin());
}

void LatencyEstimator::Learn(uint32_t rank, const std::vector<Features>& rows,
                             const std::vector<double>& times) {
  const double speed = Speed(rank);
  const double common = SampledSpeedOver(shape_);
  if (!(speed > 0)) return;
  data_.Scale(1 - kForgetting / static_cast<double>(WorldSize()));
  for (size_t i = 0; i < rows.size(); ++i) {
    // Only a rank's difference from the others is taken out, so that what is learned stays in the
    // same unit while the model moves.
    const double ms = times[i] * common / speed;
    const double expected = Modelled(rows[i]) * common;
    // Errors are relative. A sample far from what is expected must not buy weight by being short,
    // and loses it with the distance.
    double weight = 1 / (ms * ms);
    const double ratio = expected > 0 ? std::max(ms / expected, expected / ms) : 1;
    if (ratio > kOutlier) {
      const double scale = std::max(ms, expected) * ratio / kOutlier;
      weight = 1 / (scale * scale);
    }
    data_.Add(rows[i], ms, weight);
  }
  // The starting model at the speed of these machines: only its proportions are held against the
  // data, and less with every step, down to what settles directions that the data say nothing
  // about.
  const double start = SampledSpeedOver(start_shape_);
  const double steps = static_cast<double>(reports_) / WorldSize();
  const double trust = 1 / (1 + std::min(steps * steps, kPriorFades));
  NormalEquations together = data_;
  for (size_t a = 0; a < shape_.size(); ++a) {
    for (size_t b = 0; b < shape_.size(); ++b) {
      together.gram[a][b] += trust * prior_.gram[a][b] / (start * start);
    }
    together.right[a] += trust * prior_.right[a] / start;
  }
  const Features c = SolveNonNegative(together);
  double sum = 0;
  for (const double value : c) sum += value;
  if (sum > 0) shape_ = c;
}

void LatencyEstimator::FinishStep(const PendingStep& step) {
  // What the present model would have said of the step, against how long it took: the rest is
  // all-reduce, optimizer, agreement, and how much the slowest of noisy ranks exceeds its median.
  const v1::Parallelism& p = options_.parallelism;
  const uint32_t stages = std::max<uint32_t>(1, p.pipeline());
  const uint32_t sequence = std::max<uint32_t>(1, p.sequence());
  const uint32_t replicas = std::max<uint32_t>(1, p.data());
  const v1::LatencyModel now = model();
  const double share = now.forward_fraction();
  const double common = CommonSpeed();
  const std::vector<double>& factors = time_factors();
  double step_ms = 0;
  double span_ms = 0;
  for (const auto& [rank, part] : step) step_ms = std::max(step_ms, part.step_ms);
  for (uint32_t d = 0; d < replicas; ++d) {
    ScheduleTimes times;
    times.forward.resize(stages);
    times.backward.resize(stages);
    size_t count = 0;
    for (uint32_t s = 0; s < stages; ++s) {
      const uint32_t rank = (d * stages + s) * sequence;
      const double speed = common * factors[rank];
      for (const Features& row : step.at(rank).micro_batches) {
        const auto ns = static_cast<int64_t>(Modelled(row) * speed * 1e6);
        times.forward[s].push_back(static_cast<int64_t>(static_cast<double>(ns) * share));
        times.backward[s].push_back(ns - times.forward[s].back());
      }
      if (s > 0 && times.forward[s].size() != count) return;  // stages disagree on the plan
      count = times.forward[s].size();
    }
    span_ms = std::max(span_ms, MsFromNs(SimulateSchedule(times).span));
  }
  PushBounded(step_constants_, step_ms - span_ms, kConstantWindow);
}

v1::LatencyModel LatencyEstimator::model() const {
  v1::LatencyModel model = start_;
  const double speed = CommonSpeed();
  model.set_constant_ms(shape_[0] * speed);
  model.set_per_token_ms(shape_[1] * speed);
  model.set_per_pair_ms(shape_[2] * speed);
  model.set_router_ms_per_token_block(shape_[3] * speed);
  if (!forward_shares_.empty()) {
    model.set_forward_fraction(std::clamp(Median(forward_shares_), 0.01, 0.99));
  }
  if (!step_constants_.empty()) {
    model.set_step_constant_ms(std::max(0.0, Median(step_constants_)));
  }
  model.set_block_tokens(options_.block_tokens);
  model.set_min_tokens(min_tokens_);
  model.set_max_tokens(max_tokens_);
  model.set_min_budget_blocks(min_budget_);
  model.set_max_budget_blocks(max_budget_);
  return model;
}

double LatencyEstimator::FactorOf(uint32_t rank, double speed, double common,
                                  double scatter) const {
  if (!(speed > 0)) return 1;
  const double apart = std::log(speed / common);
  const auto samples = static_cast<double>(SinceChange(RatiosOver(shape_, rank)).size());
  const double error = kErrorOfMedian * scatter / std::sqrt(samples);
  const double noise = Square(kNoiseErrors * error) / std::max(Square(apart), 1e-12);
  return std::clamp(std::exp(apart * std::max(0.0, 1 - noise)), 0.01, 100.0);
}

double LatencyEstimator::time_factor(uint32_t rank) const {
  if (rank >= recent_.size() || recent_[rank].empty()) return 1;
  return FactorOf(rank, Speed(rank), CommonSpeed(), Scatter());
}

const std::vector<double>& LatencyEstimator::time_factors() const {
  if (!factors_.empty()) return factors_;
  const double common = CommonSpeed();
  const double scatter = Scatter();
  factors_.resize(recent_.size());
  for (uint32_t r = 0; r < recent_.size(); ++r) {
    factors_[r] = FactorOf(r, Speed(r), common, scatter);
  }
  return factors_;
}

std::vector<v1::RankFactor> LatencyEstimator::rank_factors() const {
  std::vector<v1::RankFactor> factors;
  const std::vector<double>& of_ranks = time_factors();
  const uint32_t replicas = std::max<uint32_t>(1, options_.parallelism.data());
  const uint32_t each = WorldSize() / replicas;
  for (uint32_t d = 0; d < replicas; ++d) {
    double slowest = 0;
    for (uint32_t r = d * each; r < (d + 1) * each; ++r) {
      if (!recent_[r].empty()) slowest = std::max(slowest, of_ranks[r]);
    }
    if (slowest == 0 || std::fabs(slowest - 1) <= kSameSpeed) continue;
    v1::RankFactor& factor = factors.emplace_back();
    factor.set_rank(d);
    factor.set_time_factor(slowest);
  }
  return factors;
}

std::string LatencyEstimator::source() const {
  return reports_ > 0 ? "learned" : from_profile_ ? "profile" : "default";
}

std::string LatencyEstimator::Serialize() const {
  ByteWriter out;
  out.Integer(kVersion);
  out.Integer(options_.block_tokens);
  out.Integer(WorldSize());
  out.Integer(reports_);
  for (const double value : shape_) out.Double(value);
  for (const auto& row : data_.gram) {
    for (const double value : row) out.Double(value);
  }
  for (const double value : data_.right) out.Double(value);
  out.Integer(min_tokens_);
  out.Integer(max_tokens_);
  out.Integer(min_budget_);
  out.Integer(max_budget_);
  for (const auto* window : {&forward_shares_, &step_constants_}) {
    out.Integer(static_cast<uint32_t>(window->size()));
    for (const double value : *window) out.Double(value);
  }
  for (const auto& samples : recent_) {
    out.Integer(static_cast<uint32_t>(samples.size()));
    for (const StepSample& s : samples) {
      for (const double value : s.features) out.Double(value);
      out.Double(s.measured_ms);
    }
  }
  return out.Take();
}

absl::Status LatencyEstimator::Restore(std::string_view bytes) {
  ByteReader in(bytes);
  LatencyEstimator read = *this;
  read.pending_.clear();
  if (const auto version = in.Integer<uint32_t>(); version != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("learned latency has version ", version, ", this program reads ", kVersion));
  }
  const auto block = in.Integer<uint32_t>();
  const auto world = in.Integer<uint32_t>();
  if (block != options_.block_tokens || world != WorldSize()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "learned latency is of ", world, " ranks and blocks of ", block, " tokens, the job has ",
        WorldSize(), " ranks and blocks of ", options_.block_tokens));
  }
  bool finite = true;
  const auto number = [&] {
    const double value = in.Double();
    finite = finite && std::isfinite(value);
    return value;
  };
  read.reports_ = in.Integer<uint64_t>();
  for (double& value : read.shape_) {
    value = number();
    finite = finite && value >= 0;
  }
  for (auto& row : read.data_.gram) {
    for (double& value : row) value = number();
  }
  for (double& value : read.data_.right) value = number();
  read.min_tokens_ = in.Integer<uint64_t>();
  read.max_tokens_ = in.Integer<uint64_t>();
  read.min_budget_ = in.Integer<uint32_t>();
  read.max_budget_ = in.Integer<uint32_t>();
  const auto count_of = [&](size_t limit) {
    const auto count = in.Integer<uint32_t>();
    finite = finite && count <= limit;
    return finite ? count : 0;
  };
  for (auto* window : {&read.forward_shares_, &read.step_constants_}) {
    window->clear();
    for (uint32_t left = count_of(kConstantWindow * WorldSize()); left > 0; --left) {
      window->push_back(number());
    }
  }
  for (auto& samples : read.recent_) {
    samples.clear();
    for (uint32_t left = count_of(kSpeedWindow); left > 0; --left) {
      StepSample s;
      for (double& value : s.features) value = number();
      s.measured_ms = number();
      samples.push_back(s);
    }
  }
  if (!finite || !in.ok() || !in.AtEnd()) {
    return absl::InvalidArgumentError("learned latency is damaged; it is ignored, learn anew");
  }
  read.factors_.clear();
  *this = std::move(read);
  return absl::OkStatus();
}

}  // namespace sparsebalance::planner
