# The torch that the engine is built for, that of the Python in Python_EXECUTABLE: target gradweave::libtorch, GRADWEAVE_TORCH
# (its folder), GRADWEAVE_TORCH_VERSION and GRADWEAVE_TORCH_MINOR (2.13.0+cpu, 2.13).
include(cmake/libtorch.cmake)
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
# From the interpreter's torch and nowhere else: headers of another libtorch under /usr/include would be taken in silence.
# It is not imported: a build for a device may need libraries that are elsewhere.
execute_process(COMMAND ${Python_EXECUTABLE} -c
                "import importlib.util; print(*importlib.util.find_spec('torch').submodule_search_locations)"
                OUTPUT_VARIABLE GRADWEAVE_TORCH RESULT_VARIABLE torch_missing OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(torch_missing)
  message(FATAL_ERROR "${Python_EXECUTABLE} has no torch: run `make deps`, or pass -DPython_EXECUTABLE=.venv/bin/python")
endif()
gradweave_torch_version(${GRADWEAVE_TORCH} GRADWEAVE_TORCH_VERSION GRADWEAVE_TORCH_MINOR)
if(GRADWEAVE_TORCH_MINOR VERSION_LESS GRADWEAVE_TORCH_OLDEST OR GRADWEAVE_TORCH_MINOR VERSION_GREATER GRADWEAVE_TORCH_NEWEST)
  message(FATAL_ERROR "${Python_EXECUTABLE} has torch ${GRADWEAVE_TORCH_VERSION}, and gradweave needs "
                      "${GRADWEAVE_TORCH_OLDEST} to ${GRADWEAVE_TORCH_NEWEST}: install one of these there, "
                      "as by pip install 'torch==${GRADWEAVE_TORCH_NEWEST}.*'")
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${GRADWEAVE_TORCH}/version.py)  # another may come
gradweave_add_libtorch(${GRADWEAVE_TORCH})
