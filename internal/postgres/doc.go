// Package postgres is codehub's database: all the SQL, a file for each table, the migrations,
// and the listener (docs/database.md).
//
// A method that acts for a user takes a workspace.Caller and checks its rights. Errors that a
// user can correct are *workspace.Error; every other error is wrapped and means that the
// database failed. Times are UTC with microseconds.
//
// Two kinds of writers share a workspace's row and never each other's columns
// (docs/database.md): the API layer through DB, the workspace controller through Controller,
// which holds the leader's own session.
//
// Locks are taken in one order, so that no two transactions wait for each other: the lock of
// the limits first, then one workspace's row, or, for Controller.Apply, rows by ascending id.
package postgres
