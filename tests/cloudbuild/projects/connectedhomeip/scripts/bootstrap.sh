echo "platform $2" > $PW_ENVIRONMENT_ROOT/activate
