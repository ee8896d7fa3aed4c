// Package workspace has the types that every layer shares: the workspace, its phases,
// conditions, operations, desired states and the state of its home (docs/states.md),
// and coded errors. It does not depend on databases, containers or HTTP.
package workspace
