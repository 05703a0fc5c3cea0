# Sourced after steps.sh by the scripts that check deploy/: `deploy_python` is a Python with the packages of deploy/requirements.txt.

deploy_environment="$root/build/deploy-environment"
deploy_python="$deploy_environment/bin/python"

make_deploy_environment() {
  local wanted="$root/deploy/requirements.txt"
  cmp -s "$wanted" "$deploy_environment/requirements.txt" && return
  rm -rf "$deploy_environment"
  step "make a Python environment" deploy-venv.log python3 -m venv "$deploy_environment" || return
  step "install what checks manifests" deploy-pip.log \
    "$deploy_environment/bin/pip" install --disable-pip-version-check --require-hashes --only-binary=:all: -r "$wanted" || return
  cp "$wanted" "$deploy_environment/requirements.txt"
}
