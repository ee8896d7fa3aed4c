package kube

import rbacv1 "k8s.io/api/rbac/v1"

// Permissions returns what a server must be allowed in the namespace of the workspaces. It
// needs nothing outside of it. pullSecrets are the names of the Secrets by which nodes pull.
func Permissions(pullSecrets ...string) []rbacv1.PolicyRule {
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch", "create", "patch", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"pods/log"}, Verbs: []string{"get"}},
		// Input of storage jobs. Servers of different versions ask for either verb.
		{APIGroups: []string{""}, Resources: []string{"pods/attach"}, Verbs: []string{"get", "create"}},
		{APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims"}, Verbs: []string{"get", "list", "watch", "create", "patch", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch", "create", "delete"}}, // marks, and what is known of images
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"list"}},
		{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies"}, Verbs: []string{"list", "watch"}},
	}
	if len(pullSecrets) > 0 { // without names, all of them could be read
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: pullSecrets, Verbs: []string{"get"}})
	}
	return rules
}
