#!/bin/sh
# Writes a backup of the production database into the folder that is named.
set -eu
pg_dump --format=custom --file="$1/production.dump" "$DATABASE_URL"
