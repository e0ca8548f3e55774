#!/bin/sh
# Compares three wordings of the skills' summaries on cases.yaml: those of the skills, and the overrides with the tags
# `brief` and `topics`, in .weakincentives. Additional arguments are passed on, such as --where kind=absent.
set -eu
cd "$(dirname "$0")"
PYTHONPATH="../..${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
exec "${WINK:-wink}" eval examples.skills_assistant.target:prompt cases.yaml \
	--adapter examples.skills_assistant.target:offline \
	--evaluators examples.skills_assistant.evaluation:EVALUATORS \
	--variant skills --variant brief:tag=brief --variant topics:tag=topics "$@"
