// Package signin logs users in with OpenID Connect providers: the flow between browser and
// provider, the periodic check that a provider still accepts a user, and back-channel
// logout. docs/signin.md describes it, and ADR 24 the decisions.
//
// A login in progress is in a cookie that only the servers can read, so that any server can
// finish it and strangers leave nothing in the database.
package signin
