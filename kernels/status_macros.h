#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function where `expr`, an absl::Status, is an error.
#define SB_RETURN_IF_ERROR(expr)                                               \
  do {                                                                         \
    if (absl::Status sb_status_ = (expr); !sb_status_.ok()) return sb_status_; \
  } while (false)

// NOLINTBEGIN(bugprone-macro-parentheses): `lhs` may be a declaration.
#define SB_CONCAT_INNER_(a, b) a##b
#define SB_CONCAT_(a, b) SB_CONCAT_INNER_(a, b)

// Declares or assigns `lhs` from `expr`, an absl::StatusOr, or returns its error.
#define SB_ASSIGN_OR_RETURN(lhs, expr) \
  SB_ASSIGN_OR_RETURN_IMPL_(SB_CONCAT_(sb_statusor_, __LINE__), lhs, expr)
#define SB_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) return tmp.status();             \
  lhs = *std::move(tmp)
// NOLINTEND(bugprone-macro-parentheses)
