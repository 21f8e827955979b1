#include "tests/proto/breaking_changes.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sparsebalance {
namespace {

using ::google::protobuf::DescriptorProto;
using ::google::protobuf::EnumDescriptorProto;
using ::google::protobuf::EnumValueDescriptorProto;
using ::google::protobuf::FieldDescriptorProto;
using ::google::protobuf::FileDescriptorSet;
using ::google::protobuf::MethodDescriptorProto;
using ::google::protobuf::ServiceDescriptorProto;

// Everything of a set by its full name.
struct Contract {
  std::map<std::string, const DescriptorProto*> messages;
  std::map<std::string, const EnumDescriptorProto*> enums;
  std::map<std::string, const ServiceDescriptorProto*> services;

  explicit Contract(const FileDescriptorSet& files) {
    for (const auto& file : files.file()) {
      const std::string prefix = absl::StrCat(file.package(), ".");
      for (const auto& message : file.message_type()) Add(prefix, message);
      for (const auto& e : file.enum_type()) enums[prefix + e.name()] = &e;
      for (const auto& service : file.service()) services[prefix + service.name()] = &service;
    }
  }

 private:
  void Add(const std::string& prefix, const DescriptorProto& message) {
    const std::string name = prefix + message.name();
    messages[name] = &message;
    for (const auto& nested : message.nested_type()) Add(name + ".", nested);
    for (const auto& e : message.enum_type()) enums[absl::StrCat(name, ".", e.name())] = &e;
  }
};

template <typename Message>
bool ReservesName(const Message& message, const std::string& name) {
  return std::count(message.reserved_name().begin(), message.reserved_name().end(), name) > 0;
}

bool ReservesNumber(const DescriptorProto& message, int number) {
  return std::any_of(message.reserved_range().begin(), message.reserved_range().end(),
                     [&](const auto& r) { return r.start() <= number && number < r.end(); });
}

// Of enums the end is part of the range.
bool ReservesNumber(const EnumDescriptorProto& e, int number) {
  return std::any_of(e.reserved_range().begin(), e.reserved_range().end(),
                     [&](const auto& r) { return r.start() <= number && number <= r.end(); });
}

template <typename Entries>
auto WithNumber(const Entries& entries, int number) {
  return std::find_if(entries.begin(), entries.end(),
                      [&](const auto& entry) { return entry.number() == number; });
}

std::string Meaning(const FieldDescriptorProto& field, const DescriptorProto& message) {
  return absl::StrCat(FieldDescriptorProto::Label_Name(field.label()), " ",
                      FieldDescriptorProto::Type_Name(field.type()), " ", field.type_name(),
                      field.has_oneof_index() && !field.proto3_optional()
                          ? absl::StrCat(" of ", message.oneof_decl(field.oneof_index()).name())
                          : "",
                      field.proto3_optional() ? " with presence" : "");
}

class Comparison {
 public:
  void Messages(const std::string& name, const DescriptorProto& before,
                const DescriptorProto& after) {
    for (const FieldDescriptorProto& field : before.field()) {
      const std::string path = absl::StrCat(name, ".", field.name());
      const auto now = WithNumber(after.field(), field.number());
      if (now == after.field().end()) {
        Gone(path, field.number(), after);
      } else if (now->name() != field.name()) {
        Say(path, absl::StrCat("is called ", now->name(), " now"));
      } else if (Meaning(*now, after) != Meaning(field, before)) {
        Say(path, absl::StrCat("was ", Meaning(field, before), ", is ", Meaning(*now, after)));
      }
    }
    UsedAgain(name, before, after.field());
  }

  void Enums(const std::string& name, const EnumDescriptorProto& before,
             const EnumDescriptorProto& after) {
    for (const EnumValueDescriptorProto& value : before.value()) {
      const std::string path = absl::StrCat(name, ".", value.name());
      const auto now = WithNumber(after.value(), value.number());
      if (now == after.value().end()) {
        Gone(path, value.number(), after);
      } else if (now->name() != value.name()) {
        Say(path, absl::StrCat("is called ", now->name(), " now"));
      }
    }
    UsedAgain(name, before, after.value());
  }

  void Services(const std::string& name, const ServiceDescriptorProto& before,
                const ServiceDescriptorProto& after) {
    for (const MethodDescriptorProto& method : before.method()) {
      const std::string path = absl::StrCat(name, ".", method.name());
      const auto now =
          std::find_if(after.method().begin(), after.method().end(),
                       [&](const auto& candidate) { return candidate.name() == method.name(); });
      if (now == after.method().end()) {
        Say(path, "is gone");
      } else if (now->input_type() != method.input_type() ||
                 now->output_type() != method.output_type() ||
                 now->client_streaming() != method.client_streaming() ||
                 now->server_streaming() != method.server_streaming()) {
        Say(path, "takes or returns something else");
      }
    }
  }

  void Say(const std::string& path, const std::string& what) {
    changes_.push_back(absl::StrCat(path, " ", what));
  }

  std::vector<std::string> Take() { return std::move(changes_); }

 private:
  template <typename After>
  void Gone(const std::string& path, int number, const After& after) {
    const std::string name = path.substr(path.rfind('.') + 1);
    if (ReservesNumber(after, number) && ReservesName(after, name)) return;
    Say(path,
        absl::StrCat("is gone, and its number ", number, " and its name are not both reserved"));
  }

  template <typename Before, typename Entries>
  void UsedAgain(const std::string& name, const Before& before, const Entries& entries) {
    for (const auto& entry : entries) {
      if (ReservesNumber(before, entry.number()) || ReservesName(before, entry.name())) {
        Say(absl::StrCat(name, ".", entry.name()), "uses a number or a name that is reserved");
      }
    }
  }

  std::vector<std::string> changes_;
};

}  // namespace

std::vector<std::string> BreakingChanges(const FileDescriptorSet& before,
                                         const FileDescriptorSet& after) {
  const Contract old_contract(before);
  const Contract contract(after);
  Comparison comparison;
  for (const auto& [name, message] : old_contract.messages) {
    const auto now = contract.messages.find(name);
    if (now == contract.messages.end()) {
      comparison.Say(name, "is gone");
    } else {
      comparison.Messages(name, *message, *now->second);
    }
  }
  for (const auto& [name, e] : old_contract.enums) {
    const auto now = contract.enums.find(name);
    if (now == contract.enums.end()) {
      comparison.Say(name, "is gone");
    } else {
      comparison.Enums(name, *e, *now->second);
    }
  }
  for (const auto& [name, service] : old_contract.services) {
    const auto now = contract.services.find(name);
    if (now == contract.services.end()) {
      comparison.Say(name, "is gone");
    } else {
      comparison.Services(name, *service, *now->second);
    }
  }
  return comparison.Take();
}

}  // namespace sparsebalance
