// The core's values as Python gives and gets them.
#pragma once

#include <pybind11/pybind11.h>

#include <cmath>
#include <memory>
#include <string>

#include "gradweave/cluster.h"
#include "gradweave/error.h"
#include "gradweave/json.h"
#include "gradweave/plan.h"
#include "gradweave/timeline.h"
#include "gradweave/workload.h"
#include "report/result_json.h"

namespace gradweave::python {

// A value that Python gives: an object of its class, which is not copied, or a dictionary or a JSON text in the form of the
// file. Errors, while a call's arguments are read: InvalidInput naming the kind of value and the place in it.
template <typename T>
struct Given {
  std::shared_ptr<const T> value;
  const T& operator*() const { return *value; }
};

// What one kind of value is called, and how it is read.
template <typename T>
struct Form;

template <>
struct Form<Workload> {
  static constexpr auto kClass = pybind11::detail::const_name("Workload");
  static constexpr const char* kWord = "workload";
  static constexpr auto kParse = parse_workload;
  static constexpr auto kRead = read_workload;
};

template <>
struct Form<Cluster> {
  static constexpr auto kClass = pybind11::detail::const_name("Cluster");
  static constexpr const char* kWord = "cluster";
  static constexpr auto kParse = parse_cluster;
  static constexpr auto kRead = read_cluster;
};

template <>
struct Form<Plan> {
  static constexpr auto kClass = pybind11::detail::const_name("Plan");
  static constexpr const char* kWord = "plan";
  static constexpr auto kParse = parse_plan;
  static constexpr auto kRead = read_plan;
};

template <>
struct Form<Timeline> {
  static constexpr auto kClass = pybind11::detail::const_name("Timeline");
  static constexpr const char* kWord = "timeline";
  static constexpr auto kParse = parse_timeline;
  static constexpr auto kRead = read_timeline;
};

// Returns a result as Python's own objects.
inline pybind11::object python_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object: {
      pybind11::dict object;
      for (const auto& [name, member] : value.items()) object[pybind11::str(name)] = python_of(member);
      return object;
    }
    case Json::value_t::array: {
      pybind11::list array;
      for (const Json& item : value) array.append(python_of(item));
      return array;
    }
    case Json::value_t::string:
      return pybind11::reinterpret_steal<pybind11::object>(PyUnicode_DecodeUTF8(
          value.get_ref<const std::string&>().data(),
          static_cast<Py_ssize_t>(value.get_ref<const std::string&>().size()), "replace"));
    case Json::value_t::boolean:
      return pybind11::bool_(value.get<bool>());
    case Json::value_t::number_integer:
      return pybind11::int_(value.get<std::int64_t>());
    case Json::value_t::number_unsigned:
      return pybind11::int_(value.get<std::uint64_t>());
    case Json::value_t::number_float:
      return pybind11::float_(value.get<double>());
    default:
      return pybind11::none();
  }
}

// Returns the JSON text of a dictionary. `word`: what it should be, for errors. Errors: InvalidInput for what JSON can't say.
inline std::string json_of(pybind11::handle given, const char* word) {
  try {
    return pybind11::module_::import("json").attr("dumps")(given).cast<std::string>();
  } catch (const pybind11::error_already_set& error) {
    if (!error.matches(PyExc_TypeError) && !error.matches(PyExc_ValueError) &&
        !error.matches(PyExc_RecursionError)) {
      throw;
    }
    throw InvalidInput("can't be written as JSON: " + pybind11::str(error.value()).cast<std::string>(), word,
                       "give what json.load() returns of such a file");
  }
}

inline Nanoseconds nanoseconds(double us) { return std::llround(us * 1000); }

// Returns the value of a JSON text. Errors: InvalidInput.
template <typename T>
std::shared_ptr<T> parsed(const std::string& text) {
  const pybind11::gil_scoped_release unlocked;
  try {
    return std::make_shared<T>(Form<T>::kParse(text));
  } catch (const InvalidInput& error) {
    throw error.within(Form<T>::kWord);
  }
}

}  // namespace gradweave::python

template <typename T>
struct pybind11::detail::type_caster<gradweave::python::Given<T>> {
  PYBIND11_TYPE_CASTER(gradweave::python::Given<T>, gradweave::python::Form<T>::kClass);

  bool load(handle source, bool /*convert*/) {
    if (isinstance<T>(source)) {
      value.value = source.cast<std::shared_ptr<T>>();
    } else if (isinstance<str>(source)) {
      value.value = gradweave::python::parsed<T>(source.cast<std::string>());
    } else if (isinstance<dict>(source)) {
      value.value =
          gradweave::python::parsed<T>(gradweave::python::json_of(source, gradweave::python::Form<T>::kWord));
    } else {
      return false;
    }
    return true;
  }
};
