#!/bin/bash
reward=0
if [ "$(cat /app/answer.txt 2>/dev/null)" = __EACH__ ]; then reward=1; fi
echo $reward > /logs/verifier/reward.txt
