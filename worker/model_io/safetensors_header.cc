#include "worker/model_io/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"

namespace sparsebalance::model_io {
namespace {

using Json = nlohmann::json;

constexpr char kMetadata[] = "__metadata__";

absl::Status Broken(const std::string& what) { return absl::DataLossError(what); }

// The JSON library keeps the last of two equal keys without a word: here they are an error.
absl::StatusOr<Json> ParseObject(std::string_view text) {
  std::set<std::string> names;
  std::optional<std::string> twice;
  const Json::parser_callback_t watch_names = [&](int depth, Json::parse_event_t event,
                                                  Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!names.insert(name).second) twice = name;
    }
    return true;
  };
  Json json = Json::parse(text.begin(), text.end(), watch_names, /*allow_exceptions=*/false);
  if (!json.is_object()) return Broken("the header is not a JSON object");
  if (twice.has_value()) return Broken(absl::StrCat("tensor ", *twice, " stands there twice"));
  return json;
}

absl::StatusOr<std::map<std::string, std::string>> ParseMetadata(const Json& json) {
  std::map<std::string, std::string> metadata;
  if (!json.is_object()) return Broken("its __metadata__ is not an object");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      return Broken(absl::StrCat("its __metadata__ has ", key, ", which is not a text"));
    }
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

absl::StatusOr<TensorInfo> ParseTensor(const std::string& name, const Json& entry,
                                       uint64_t data_bytes) {
  const auto broken = [&](const std::string& what) {
    return Broken(absl::StrCat("tensor ", name, " ", what));
  };
  if (!entry.is_object()) return broken("has no object in the header");
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(field)) return broken(absl::StrCat("lacks the field ", field));
  }
  for (const auto& [field, value] : entry.items()) {
    if (field != "dtype" && field != "shape" && field != "data_offsets") {
      return broken(absl::StrCat("has an unknown field ", field));
    }
  }
  TensorInfo info;
  info.name = name;
  const Json& dtype = entry["dtype"];
  if (!dtype.is_string()) return broken("has a dtype that is not a text");
  const std::optional<ElementType> type = ElementTypeFromName(dtype.get_ref<const std::string&>());
  if (!type.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat("tensor ", name, " has the unknown type ", dtype.get<std::string>()));
  }
  info.type = *type;
  const Json& shape = entry["shape"];
  if (!shape.is_array()) return broken("has a shape that is not a list");
  for (const Json& size : shape) {
    if (!size.is_number_unsigned() ||
        size.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return broken(absl::StrCat("has the size ", size.dump(), " in its shape"));
    }
    info.shape.push_back(size.get<int64_t>());
  }
  const Json& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return broken(absl::StrCat("has data_offsets ", offsets.dump(),
                               ", which are not two sizes, begin and end"));
  }
  info.begin = offsets[0].get<uint64_t>();
  info.end = offsets[1].get<uint64_t>();
  if (info.begin > info.end) {
    return broken(absl::StrCat("ends at ", info.end, " before it begins at ", info.begin));
  }
  if (info.end > data_bytes) {
    return broken(absl::StrCat("ends at byte ", info.end, " of data, the file has ", data_bytes,
                               ": it is cut off"));
  }
  const std::optional<uint64_t> bytes = TensorBytes(info.type, info.shape);
  if (!bytes.has_value()) {
    return broken(absl::StrCat("has the shape ", ShapeText(info.shape), ", which fits nowhere"));
  }
  if (*bytes != info.bytes()) {
    return broken(absl::StrCat("of type ", dtype.get<std::string>(), " and shape ",
                               ShapeText(info.shape), " needs ", *bytes, " bytes and has ",
                               info.bytes()));
  }
  return info;
}

// Every byte of data belongs to exactly one tensor.
absl::Status CheckCover(const std::vector<TensorInfo>& tensors, uint64_t data_bytes) {
  uint64_t covered = 0;
  const TensorInfo* last = nullptr;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.begin < covered) {
      return Broken(absl::StrCat("tensors ", last->name, " and ", tensor.name, " overlap"));
    }
    if (tensor.begin > covered) {
      return Broken(absl::StrCat(tensor.begin - covered, " bytes before tensor ", tensor.name,
                                 " belong to no tensor"));
    }
    covered = tensor.end;
    last = &tensor;
  }
  if (covered != data_bytes) {
    return Broken(absl::StrCat("the last ", data_bytes - covered, " bytes belong to no tensor"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseHeader(std::string_view json, uint64_t data_bytes) {
  if (!json.starts_with('{')) return Broken("the header does not begin with '{'");
  SB_ASSIGN_OR_RETURN(const Json object, ParseObject(json));
  SafetensorsHeader header;
  for (const auto& [name, entry] : object.items()) {
    if (name == kMetadata) {
      SB_ASSIGN_OR_RETURN(header.metadata, ParseMetadata(entry));
    } else {
      SB_ASSIGN_OR_RETURN(TensorInfo tensor, ParseTensor(name, entry, data_bytes));
      header.tensors.push_back(std::move(tensor));
    }
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorInfo& a, const TensorInfo& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  SB_RETURN_IF_ERROR(CheckCover(header.tensors, data_bytes));
  return header;
}

std::string FormatHeader(const SafetensorsHeader& header) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) json[kMetadata] = header.metadata;
  for (const TensorInfo& tensor : header.tensors) {
    json[tensor.name] = {{"dtype", ElementTypeName(tensor.type)},
                         {"shape", tensor.shape},
                         {"data_offsets", {tensor.begin, tensor.end}}};
  }
  // A name that is not UTF-8 must not throw.
  std::string text = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace sparsebalance::model_io
