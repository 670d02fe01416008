"""`python -m device_code_audit`."""

from device_code_audit import main

main()
