prepare_environment() { echo "org $TF_VAR_org_id folder $TF_VAR_folder_id" | tee /workspace/env; }
stage() { cat /workspace/env; echo "$1 $2"; }
