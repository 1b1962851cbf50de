# gradweave::libtorch: headers and libraries in the folder of a torch package, whatever it was built for (CPU, CUDA, ROCm).
# TorchConfig.cmake of a CUDA build asks for the toolkit that it was compiled with, which the engine has no use for.
set(GRADWEAVE_TORCH_OLDEST 2.11)
set(GRADWEAVE_TORCH_NEWEST 2.15)

# Sets `version` to what the package in `folder` says of itself, as in 2.13.0+cpu, and `minor` to its first two numbers; to
# nothing where no package is.
function(gradweave_torch_version folder version minor)
  set(lines)
  foreach(file version.py build-version)  # of a wheel, of a libtorch archive
    if(NOT lines AND EXISTS ${folder}/${file})
      file(STRINGS ${folder}/${file} lines REGEX "^(__version__ = '|[0-9])")
    endif()
  endforeach()
  string(REGEX MATCH "([0-9]+\\.[0-9]+)[0-9A-Za-z.+]*" found "${lines}")
  set(${version} "${found}" PARENT_SCOPE)
  set(${minor} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

function(gradweave_add_libtorch folder)
  add_library(gradweave::libtorch INTERFACE IMPORTED GLOBAL)
  # System headers: their warnings are theirs.
  target_include_directories(gradweave::libtorch SYSTEM INTERFACE ${folder}/include ${folder}/include/torch/csrc/api/include)
  target_compile_definitions(gradweave::libtorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_compile_features(gradweave::libtorch INTERFACE cxx_std_20)
  # libtorch.so has no symbols of its own: it brings in the devices' libraries, whose kernels register themselves.
  target_link_libraries(gradweave::libtorch INTERFACE
    ${folder}/lib/libc10.so ${folder}/lib/libtorch_cpu.so
    "-Wl,--push-state,--no-as-needed,${folder}/lib/libtorch.so,--pop-state")
endfunction()
