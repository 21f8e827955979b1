# What is installed where, and the Debian packages made of it: `./run package`.
#
#   sparsebalance-coordinator   the service, its systemd unit and configuration, dashboards and rules
#   sparsebalance-worker        worker and data tool, a systemd unit a job
#   sparsebalance-worker-cuda   the same for GPUs (preset package-cuda), instead of it
#   sparsebalance-tools         sbctl with its shell completion
include(GNUInstallDirs)

set(DEBIAN_DIR "${CMAKE_SOURCE_DIR}/deploy/debian")
set(SB_WORKER_PACKAGE sparsebalance-worker)
if(SPARSEBALANCE_BUILD_CUDA)
  set(SB_WORKER_PACKAGE sparsebalance-worker-cuda)
endif()

install(TARGETS sparsebalance-coordinator
  RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT coordinator)
install(TARGETS sparsebalance-worker sparsebalance-data
  RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT worker)
install(TARGETS sbctl RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT tools)

install(FILES "${DEBIAN_DIR}/sparsebalance-coordinator.service"
  DESTINATION lib/systemd/system COMPONENT coordinator)
install(FILES "${DEBIAN_DIR}/coordinator.toml"
  DESTINATION "${CMAKE_INSTALL_FULL_SYSCONFDIR}/sparsebalance" COMPONENT coordinator)
install(DIRECTORY dashboards/grafana dashboards/provisioning dashboards/prometheus
  DESTINATION "${CMAKE_INSTALL_DATADIR}/sparsebalance/dashboards" COMPONENT coordinator)
install(FILES README.md CHANGELOG.md docs/coordinator.md docs/security.md docs/alerts.md docs/metrics.md
  DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/sparsebalance-coordinator" COMPONENT coordinator)

install(FILES "${DEBIAN_DIR}/sparsebalance-worker@.service"
  DESTINATION lib/systemd/system COMPONENT worker)
install(DIRECTORY DESTINATION "${CMAKE_INSTALL_FULL_SYSCONFDIR}/sparsebalance/workers" COMPONENT worker)
install(FILES docs/worker.md docs/models.md docs/fine-tuning.md docs/gpu.md CHANGELOG.md
  DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/${SB_WORKER_PACKAGE}" COMPONENT worker)

# Completion is printed by the program itself, so it cannot fall behind.
set(COMPLETIONS)
foreach(SHELL bash zsh fish)
  set(FILE "${CMAKE_BINARY_DIR}/completion/sbctl.${SHELL}")
  add_custom_command(OUTPUT "${FILE}"
    COMMAND ${CMAKE_COMMAND} -E make_directory "${CMAKE_BINARY_DIR}/completion"
    COMMAND sbctl completion ${SHELL} > "${FILE}"
    DEPENDS sbctl VERBATIM)
  list(APPEND COMPLETIONS "${FILE}")
endforeach()
add_custom_target(sb_completion ALL DEPENDS ${COMPLETIONS})
install(FILES "${CMAKE_BINARY_DIR}/completion/sbctl.bash" RENAME sbctl
  DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" COMPONENT tools)
install(FILES "${CMAKE_BINARY_DIR}/completion/sbctl.zsh" RENAME _sbctl
  DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions" COMPONENT tools)
install(FILES "${CMAKE_BINARY_DIR}/completion/sbctl.fish" RENAME sbctl.fish
  DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d" COMPONENT tools)
install(FILES docs/planner.md CHANGELOG.md
  DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/sparsebalance-tools" COMPONENT tools)

set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL coordinator worker tools)
if(SPARSEBALANCE_BUILD_CUDA)
  # The other two are those of the build without CUDA.
  set(CPACK_COMPONENTS_ALL worker)
endif()
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_VENDOR "The SparseBalance developers")
set(CPACK_PACKAGE_CONTACT "The SparseBalance developers")
set(CPACK_PACKAGE_DIRECTORY "${CMAKE_BINARY_DIR}/packages")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# Libraries are found by what the programs link, so the list cannot fall behind.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_COORDINATOR_PACKAGE_NAME sparsebalance-coordinator)
set(CPACK_DEBIAN_COORDINATOR_PACKAGE_SECTION net)
set(CPACK_COMPONENT_COORDINATOR_DESCRIPTION "Plans the steps of long-context training jobs
 A gRPC service that takes load telemetry from all ranks of training jobs with
 block-sparse attention, and returns for every step which rank trains which
 sequences and how many blocks each of them attends to.")
set(CPACK_DEBIAN_COORDINATOR_PACKAGE_DEPENDS "adduser, init-system-helpers")
set(CPACK_DEBIAN_COORDINATOR_PACKAGE_SUGGESTS "sparsebalance-tools, prometheus, etcd-server")
file(WRITE "${CMAKE_BINARY_DIR}/debian/coordinator/conffiles" "/etc/sparsebalance/coordinator.toml\n")
set(CPACK_DEBIAN_COORDINATOR_PACKAGE_CONTROL_EXTRA
  "${DEBIAN_DIR}/coordinator/postinst" "${DEBIAN_DIR}/coordinator/prerm"
  "${DEBIAN_DIR}/coordinator/postrm" "${CMAKE_BINARY_DIR}/debian/coordinator/conffiles")

set(CPACK_DEBIAN_WORKER_PACKAGE_NAME ${SB_WORKER_PACKAGE})
set(CPACK_COMPONENT_WORKER_DESCRIPTION "Trains models with block-sparse attention as a SparseBalance node
 A daemon, one a node, that owns the node's ranks, trains by the coordinator's
 plans and reports what the steps took; and the tool that packs its data.")
set(CPACK_DEBIAN_WORKER_PACKAGE_DEPENDS "adduser, init-system-helpers")
set(CPACK_DEBIAN_WORKER_PACKAGE_SUGGESTS "sparsebalance-tools")
if(SPARSEBALANCE_BUILD_CUDA)
  set(CPACK_DEBIAN_WORKER_PACKAGE_CONFLICTS sparsebalance-worker)
  set(CPACK_DEBIAN_WORKER_PACKAGE_REPLACES sparsebalance-worker)
  set(CPACK_DEBIAN_WORKER_PACKAGE_PROVIDES "sparsebalance-worker (= ${PROJECT_VERSION})")
endif()
set(CPACK_DEBIAN_WORKER_PACKAGE_CONTROL_EXTRA
  "${DEBIAN_DIR}/worker/postinst" "${DEBIAN_DIR}/worker/prerm" "${DEBIAN_DIR}/worker/postrm")

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME sparsebalance-tools)
set(CPACK_COMPONENT_TOOLS_DESCRIPTION "Asks SparseBalance coordinators, and plans without one
 sbctl shows the jobs of a coordinator and why a step was planned as it was,
 drains, evicts, backs up and restores, and simulates or replays offline.")
include(CPack)
