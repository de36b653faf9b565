#!/bin/sh
# Target, then assistant: sh train_all.sh DATA OUT TARGET_MINUTES ASSISTANT_MINUTES. Goes on where it was cut off.
set -e
here=$(dirname "$0")
${PYTHON:-python} "$here/train.py" target --data "$1" --out "$2" --minutes "$3"
${PYTHON:-python} "$here/train.py" assistant --data "$1" --out "$2" --minutes "$4"
