#!/bin/bash
set -e
mkdir -p $5
echo $2 > /tmp/$2
tar -C /tmp -czf $5/$2.tar.gz $2
echo archived $2
