# A stack of the template, as `zae-limiter deploy` makes it. Variables that are null leave a parameter at its default.

resource "aws_cloudformation_stack" "limiter" {
  name          = var.name
  template_body = file(coalesce(var.template_file, "${path.module}/../../src/zae_limiter/aws/template.yaml"))
  parameters    = merge({ ManagedBy = "Terraform" }, { for name, value in local.parameters : name => tostring(value) if value != null })
  capabilities  = ["CAPABILITY_NAMED_IAM"]
  tags          = var.tags
}
