#!/bin/bash
echo __EACH__ > answer.txt
