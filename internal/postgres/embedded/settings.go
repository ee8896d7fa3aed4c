package embedded

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	roleName     = "codehub"
	databaseName = "codehub"
	superuser    = "postgres"
	port         = "5432" // only names the socket; nothing listens on TCP
	generated    = "# Written by codehub at every start; changes made here are lost.\n\n"
)

// postgresqlConf is for one small application on a shared machine: little memory, few
// processes, few wakeups, full durability. Paths are relative to the cluster's folder.
const postgresqlConf = generated + `listen_addresses = ''
port = ` + port + `
unix_socket_directories = '../run'
unix_socket_permissions = 0700
cluster_name = 'codehub'

max_connections = 100
shared_buffers = 64MB
jit = off
max_parallel_workers_per_gather = 0
# Files instead of /dev/shm, which is 64 MB in a container and emptied when a
# user logs out. The room set aside is usually enough to need neither.
dynamic_shared_memory_type = mmap
min_dynamic_shared_memory = 4MB

fsync = on
synchronous_commit = on
full_page_writes = on
wal_level = minimal
max_wal_senders = 0
max_logical_replication_workers = 0
min_wal_size = 32MB
max_wal_size = 256MB
checkpoint_timeout = 15min
autovacuum = on

# A query whose client was killed must not keep its locks until it is done.
client_connection_check_interval = 5s

timezone = 'UTC'
datestyle = 'iso, mdy'
lc_messages = 'C'
lc_monetary = 'C'
lc_numeric = 'C'
lc_time = 'C'
default_text_search_config = 'pg_catalog.simple'

logging_collector = on
log_directory = '../log'
log_filename = 'postgresql-%Y%m%d-%H%M%S.log'
log_file_mode = 0600
log_rotation_size = 5MB
log_rotation_age = 0
log_timezone = 'UTC'
log_line_prefix = '%m [%p] '
log_checkpoints = off
log_min_duration_statement = 2s
# Never the values of a statement: there may be secrets among them.
log_parameter_max_length = 0
log_parameter_max_length_on_error = 0
`

// hbaConf admits the users in pg_ident.conf as the role codehub. PostgreSQL refuses all
// others, including the superuser.
const hbaConf = generated + "local all " + roleName + " peer map=" + roleName + "\n"

// confFiles returns the cluster's settings by file name. more overrides the defaults.
func confFiles(acc accounts, more map[string]string) map[string]string {
	var conf, ident strings.Builder
	conf.WriteString(postgresqlConf)
	for _, name := range slices.Sorted(maps.Keys(more)) {
		fmt.Fprintf(&conf, "%s = '%s'\n", name, strings.ReplaceAll(more[name], "'", "''"))
	}
	ident.WriteString(generated)
	names := []string{acc.server.name}
	if acc.switched() {
		names = append(names, acc.postgres.name)
	}
	for _, name := range names {
		fmt.Fprintf(&ident, "%s \"%s\" %s\n", roleName, strings.ReplaceAll(name, `"`, `""`), roleName)
	}
	return map[string]string{
		"postgresql.conf": conf.String(),
		"pg_hba.conf":     hbaConf,
		"pg_ident.conf":   ident.String(),
	}
}
